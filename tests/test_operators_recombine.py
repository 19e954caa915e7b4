import random

from operators.base import Context, Parent
from operators.genes import get_genes, set_genes
from operators.recombine import Recombine
from operators.rewrite import REWRITES
from tests.operators_tasks import seed


def child(one: str, two: str, number: int) -> str | None:
    draft = Recombine()([Parent(0, one, 1.0), Parent(1, two, 1.2)], Context(random.Random(number)))
    return draft.source if draft else None


def test_parameters_of_one_in_the_body_of_the_other() -> None:
    one = seed("softmax")
    two = set_genes(one.replace("tl.exp(x - largest) / total", "tl.exp(x - largest) * (1.0 / total)"), {
        "softmax_kernel.BLOCK_SIZE": 1024, "softmax_kernel.num_warps": 4,
    })  # fmt: skip
    children = {c for i in range(30) if (c := child(one, two, i))}
    assert len(children) > 2 and not children & {one, two}
    for source in children:
        genes = {g.name: g.value for g in get_genes(source)}
        assert genes["softmax_kernel.BLOCK_SIZE"] in (128, 1024)
        assert genes["softmax_kernel.num_warps"] in (8, 4)


def test_a_kernel_of_one_in_the_other() -> None:
    source = seed("rms_norm")
    first, second = source.index("@triton.jit"), source.index("@triton.jit", source.index("@triton.jit") + 1)
    one = source[:second].replace("other=0.0)", 'other=0.0, eviction_policy="evict_last")') + source[second:]
    two = source[:second] + source[second:].replace("mask=mask)\n\n", 'mask=mask, cache_modifier=".cs")\n\n')
    assert one != source and two != source and first < second
    both = one[: one.index("def scale_kernel")] + two[two.index("def scale_kernel") :]
    assert {child(one, two, i) for i in range(20)} == {both, source}


def test_the_base_is_the_parent_whose_text_the_child_has() -> None:
    one = "# one\n" + seed("softmax")
    two = "# two\n" + set_genes(seed("softmax"), {"softmax_kernel.BLOCK_SIZE": 1024, "softmax_kernel.num_warps": 4})
    drafts = [Recombine()([Parent(0, one, 1.0), Parent(1, two, 1.2)], Context(random.Random(i))) for i in range(30)]
    bases = {(draft.base, draft.source.partition("\n")[0]) for draft in drafts if draft}
    assert bases == {(0, "# one"), (1, "# two")}


def test_kernels_that_are_launched_otherwise_do_not_mix() -> None:
    one = seed("matmul")
    two = REWRITES["swap_axes"].apply(one, random.Random(0))
    assert two is not None
    assert all(child(one, two, i) is None for i in range(10))


def test_an_autotuned_kernel_stays_out_of_launches_that_say_how_many_warps() -> None:
    one = seed("rms_norm")
    config = "@triton.autotune([triton.Config({}, num_warps=4)], key=[])\n@triton.jit"
    two = one.replace("@triton.jit", config)
    assert one.count("num_warps=") == 2 and two != one
    assert all(child(one, two, i) is None for i in range(10))


def test_names_that_the_other_does_not_have_stay_out() -> None:
    one = seed("vector_sin")
    two = one.replace("import torch\n", "import torch\nimport math\n").replace(
        "tl.sin(x)", "tl.sin(x) * math.sqrt(1.0)"
    )
    assert child(one, two, 0) == one.replace("import torch\n", "import torch\nimport math\n")


def test_none_for_equal_parents_and_for_strangers() -> None:
    one = seed("softmax")
    assert child(one, one, 0) is None
    assert child(one, one + "\n# a comment\n", 0) is None
    assert child(one, seed("matmul"), 0) is None
    assert child(one, "def f(:\n", 0) is None

"""The chosen autotune configuration is written into the source."""

from fitness.frontend.freeze import freeze
from fitness.frontend.plan import Config

SOURCE = """
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": b}, num_warps=w) for b in (128, 256) for w in (4, 8)]

# a comment that stays
@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@triton.autotune([triton.Config({}, num_stages=2)], key=[])
@triton.jit
def other(x):
    pass
"""

CHOSEN = Config(
    (4, 1, 1),
    {"n": 1000, "BLOCK": 256},
    {"num_warps": 8, "num_stages": 3},
    "BLOCK: 256, num_warps: 8, num_ctas: 1, num_stages: 3, maxnreg: None",
)


def test_keyword_configs_are_replaced_and_the_rest_stays():
    frozen = freeze(SOURCE, {"scale": CHOSEN})
    assert "configs=[triton.Config({'BLOCK': 256}, num_warps=8, num_stages=3)]" in frozen
    assert 'key=["n"]' in frozen and "# a comment that stays" in frozen
    assert "[triton.Config({}, num_stages=2)]" in frozen  # another kernel is not touched


def test_what_cannot_be_written_out_is_not_frozen():
    odd = Config((4, 1, 1), {**CHOSEN.args, "BLOCK": {"dtype": "fp16"}}, CHOSEN.options, CHOSEN.label)
    assert freeze(SOURCE, {"scale": odd}) == ""
    unread = SOURCE + "(size): int = 3\n"
    compile(unread, "kernel.py", "exec")
    assert freeze(unread, {"scale": CHOSEN}) == ""


def test_what_the_launch_sets_is_left_to_it():
    label = "BLOCK: 256, num_warps: 8, num_ctas: 1, num_stages: 3, maxnreg: None"
    chosen = Config((4, 1, 1), CHOSEN.args, {**CHOSEN.options, "maxnreg": 128}, label)
    assert freeze(SOURCE, {"scale": chosen}) == freeze(SOURCE, {"scale": CHOSEN})
    own = Config((4, 1, 1), CHOSEN.args, {**CHOSEN.options, "maxnreg": 64}, label.replace("None", "64"))
    assert "num_stages=3, maxnreg=64)]" in freeze(SOURCE, {"scale": own})


def test_positional_configs_are_replaced():
    frozen = freeze(SOURCE, {"other": Config((1, 1, 1), {"x": 0}, {"num_stages": 4}, "num_stages: 4")})
    assert "@triton.autotune([triton.Config({}, num_stages=4)], key=[])" in frozen


def test_the_frozen_configuration_is_what_triton_then_uses():
    import triton

    space: dict = {}
    decorator = freeze(SOURCE, {"scale": CHOSEN}).split("@triton.autotune(", 1)[1].split("\n", 1)[0]
    exec(f"configs = dict({decorator.rstrip(')')})['configs']", {"triton": triton}, space)
    (config,) = space["configs"]
    assert (config.kwargs, config.num_warps, config.num_stages) == ({"BLOCK": 256}, 8, 3)


def test_without_autotune_there_is_nothing_to_freeze():
    assert freeze(SOURCE, {}) == ""


def test_a_text_of_the_candidate_cannot_keep_it_busy():
    config = Config((4, 1, 1), CHOSEN.args, CHOSEN.options, f"MODE: x {'a' * 200_000}, {CHOSEN.label}")
    assert "configs=[triton.Config({'BLOCK': 256}, num_warps=8, num_stages=3)]" in freeze(SOURCE, {"scale": config})

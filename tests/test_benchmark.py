"""Times against what a device can do."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter

import pytest

from evo.core.records import Verdict
from fitness.frontend.stages import Stop
from fitness.tasks.task import load_task
from tests.bench_on_cpu import CpuBench, N, at, doubling

pytest.importorskip("pynvml")

from fitness.cuda.device import DeviceFacts
from fitness.gpu import benchmark, paired_benchmark
from fitness.gpu.benchmark import check_roofline, rates
from fitness.gpu.exchange import put, take
from fitness.gpu.programs import Loaded
from fitness.gpu.runner import LaunchBundle
from fitness.gpu.verification import FRESH
from fitness.verify import oracle

GPU = DeviceFacts("a GPU", "", "", (9, 0), 132, 10**6, 10**11, 1e9, 0, 0, 0, 0, 4e12, 3e12, 5e14)
TASK = load_task("softmax")
CASE = TASK.cases[0]


def task(nbytes: float | None, flops: float | None):
    return dataclasses.replace(
        TASK,
        bytes=None if nbytes is None else lambda case: nbytes,
        flops=None if flops is None else lambda case: flops,
    )


@pytest.mark.parametrize(
    ("nbytes", "flops", "limit_us"),
    [
        (4e9 + 1e6, None, 1000.0),  # what fits into the L2 cache need not be moved
        (None, 1.25e12, 1000.0),  # narrower types than the one that was measured are faster
        (4e9 + 1e6, 2.5e12, 2000.0),
    ],
)
def test_what_is_far_below_the_limit_is_rejected(nbytes, flops, limit_us):
    check_roofline(task(nbytes, flops), CASE, GPU, 0.71 * limit_us)
    with pytest.raises(Stop, match=f"takes {limit_us:.2f} us at least on a GPU") as stop:
        check_roofline(task(nbytes, flops), CASE, GPU, 0.69 * limit_us)
    assert stop.value.verdict is Verdict.REJECTED


def test_the_limit_of_a_gpu_allows_its_narrowest_type():
    geforce = dataclasses.replace(GPU, capability=(8, 9))  # int8 is four times as fast as bfloat16
    check_roofline(task(None, 1.25e12), CASE, geforce, 351.0)
    with pytest.raises(Stop):
        check_roofline(task(None, 1.25e12), CASE, geforce, 349.0)


def test_where_a_task_does_not_say_how_much_work_it_is_any_time_may_be():
    check_roofline(task(None, None), CASE, GPU, 1e-3)
    check_roofline(task(1e6, None), CASE, GPU, 1e-3)
    assert rates(task(None, None), CASE, GPU, 1.0) == {}


def test_rates_are_of_the_work_and_of_what_was_measured():
    assert rates(task(3e9, 1e12), CASE, GPU, 2000.0) == pytest.approx(
        {"gb_per_s": 1500.0, "of_copy_rate": 0.5, "tflop_per_s": 500.0, "of_matmul_rate": 1.0}
    )


@pytest.mark.parametrize("reference", ["reference = 'seed'", "def reference(x):\n    return x * 2"])
def test_a_kernel_that_builds_on_the_range_of_its_inputs_is_right_on_them_alone(monkeypatch, tmp_path, reference):
    narrow = 'torch.rand(case.axes["N"], generator=generator, device=generator.device)'
    bench = CpuBench(monkeypatch, tmp_path, doubling(40.0), draw=narrow, reference=reference)

    def clipped(x: int, y: int, n: int) -> float:
        at(y, n)[:] = 2 * at(x, n).clip(0, 1)
        return 30.0

    assert bench.evaluate(clipped).verdict is Verdict.OK
    found = bench.bench.elsewhere(clipped, "s")
    assert {case: report.verdict for case, report in found.items()} == dict.fromkeys(N, Verdict.WRONG)
    assert "output is wrong" in found["one"].message
    right = bench.bench.elsewhere(doubling(30.0), "s")
    assert {case: report.verdict for case, report in right.items()} == dict.fromkeys(N, Verdict.OK)
    assert bench.evaluate(doubling(30.0)).verdict is Verdict.OK  # the baseline is as it was


def test_a_kernel_that_is_far_too_slow_is_not_verified(monkeypatch, tmp_path):
    bench = CpuBench(monkeypatch, tmp_path, doubling(40.0))
    calls = []

    def crawling(x: int, y: int, n: int) -> float:
        calls.append(n)
        return doubling(300_000.0)(x, y, n)

    with pytest.raises(Stop, match=r"one execution takes 0\.3 s, more than the 0\.25 s that") as stop:
        bench.evaluate(crawling)
    assert stop.value.verdict is Verdict.TIMEOUT
    assert calls == [N["one"]] * 2  # the first might have loaded something
    with pytest.raises(Stop) as stop:
        bench.bench.look(crawling, "1")
    assert stop.value.verdict is Verdict.TIMEOUT
    assert bench.evaluate(doubling(200_000.0)).verdict is Verdict.OK  # 5000 times as long, but not for long


def test_a_seed_that_is_too_slow_to_be_timed_is_refused_before_it_is_timed(monkeypatch, tmp_path):
    calls = []

    def crawling(x: int, y: int, n: int) -> float:
        calls.append(n)
        return doubling(600_000.0)(x, y, n)

    with pytest.raises(
        Stop, match=r"one execution of the seed kernel takes 0\.6 s, more than 0\.5 s: .* smaller"
    ) as stop:
        CpuBench(monkeypatch, tmp_path, crawling)
    assert stop.value.verdict is Verdict.UNSUPPORTED
    assert calls == [N["one"]] * 2  # the first might have loaded something


def test_how_slow_is_too_slow_depends_on_the_baseline(monkeypatch, tmp_path):
    slow_seed = CpuBench(monkeypatch, tmp_path, doubling(10_000.0))
    assert slow_seed.evaluate(doubling(490_000.0)).verdict is Verdict.OK
    with pytest.raises(Stop, match=r"more than the 0\.5 s that are allowed beside the baseline"):
        slow_seed.evaluate(doubling(510_000.0))


def test_beside_pytorch_too_a_kernel_may_not_be_far_too_slow(monkeypatch, tmp_path):
    bench = CpuBench(monkeypatch, tmp_path, 10_000.0)
    assert bench.evaluate(doubling(490_000.0)).verdict is Verdict.OK
    with pytest.raises(Stop, match=r"more than the 0\.5 s"):
        bench.evaluate(doubling(510_000.0))


def test_a_very_slow_configuration_is_timed_once(monkeypatch, tmp_path):
    timer = CpuBench(monkeypatch, tmp_path, doubling(40.0)).bench.timer
    asked = []

    def alone(program: object, samples: int) -> list[float]:
        asked.append(samples)
        return [us] * samples

    monkeypatch.setattr(timer, "alone", alone)
    for us, samples in ((200_000.0, [1, 4]), (300_000.0, [1])):
        asked.clear()
        assert timer.least(None, 5) == us
        assert asked == samples


def test_files_of_a_certificate_are_written_and_read_while_others_have_the_gpu(monkeypatch, tmp_path):
    bench = CpuBench(monkeypatch, tmp_path, doubling(40.0)).bench
    lent = []

    @contextlib.contextmanager
    def lend(again):
        before = set(tmp_path.glob("*.in.*"))
        yield
        lent.append((len(set(tmp_path.glob("*.in.*")) - before), again))

    bench._lent = lend
    cases = bench.task.cases
    described = bench.draw(cases, "1", str(tmp_path))
    assert lent == [(len(cases), False)]  # one argument each; nobody waits for the GPU to say that they are written
    assert [take(args[0], tmp_path, "cpu").shape for args in described] == [(N["one"],), (N["two"],)]
    doubled = [put(2 * take(args[0], tmp_path, "cpu"), tmp_path / f"{i}.out") for i, args in enumerate(described)]
    answers = [{"structure": "tensor", "outputs": [output], "modified": []} for output in doubled]
    most = max((tmp_path / output["file"]).stat().st_size for output in doubled)
    for least, read in ((1, 2), (most, 1), (most + 1, 0)):  # to read little takes less than to wait for the GPU again
        del lent[1:]
        monkeypatch.setattr(benchmark, "LENT_BYTES", least)
        found = bench.compare(None, cases, "1", str(tmp_path), answers)
        assert [match.verdict for match in found] == [Verdict.OK, Verdict.OK]
        assert lent[1:] == [(0, True)] * read


REQUESTS = {
    "verify": lambda bench: bench.verify(doubling(40.0)),
    "beside": lambda bench: bench.beside(doubling(40.0), LaunchBundle({}, {}, {}), False),
    "baselines": lambda bench: bench.baselines(doubling(40.0)),
}


def test_requests_of_suites_unload_their_machine_code(monkeypatch, tmp_path):
    """One process serves a whole suite.  What fails is unloaded too."""
    bench = CpuBench(monkeypatch, tmp_path, doubling(40.0)).bench
    load = bench._load
    opened: list[Loaded] = []
    closed: list[Loaded] = []

    def kept(loaded: Loaded) -> Loaded:
        opened.append(loaded)
        return loaded

    def step(*_, **__):
        if fails:
            raise Stop("verify", Verdict.WRONG, "it is wrong")
        return {}

    monkeypatch.setattr(bench, "_load", lambda bundle: kept(load(bundle)))
    monkeypatch.setattr(benchmark, "Loaded", lambda bundle: kept(Loaded(bundle)))
    monkeypatch.setattr(Loaded, "close", lambda loaded: closed.append(loaded))
    for name in ("_by_case", "_beside_pytorch"):
        monkeypatch.setattr(bench, name, step)
    for fails, request in itertools.product((False, True), REQUESTS):
        opened.clear()
        closed.clear()
        monkeypatch.setattr(bench._verifier, "_check_pace", step)
        with pytest.raises(Stop) if fails else contextlib.nullcontext():
            REQUESTS[request](bench)
        assert len(opened) == (2 if request == "beside" else 1), request
        assert sorted(map(id, closed)) == sorted(map(id, opened)), request


def executions(monkeypatch, folder, us: float) -> int:
    """Of a seed kernel while it is prepared."""
    folder.mkdir()
    count = 0

    def counted(x: int, y: int, n: int) -> float:
        nonlocal count
        count += 1
        return doubling(us)(x, y, n)

    assert CpuBench(monkeypatch, folder, counted).prepared.verdict is Verdict.OK
    return count


def test_a_seed_that_takes_tenths_of_a_second_is_prepared_with_fewer_executions(monkeypatch, tmp_path):
    monkeypatch.setattr(paired_benchmark, "SAMPLE_US", 0)  # one launch a sample
    usual, longer, slow = (
        executions(monkeypatch, tmp_path / name, us) for name, us in (("a", 200.0), ("b", 20_000.0), ("c", 300_000.0))
    )
    assert usual == longer
    each = 2 * 2  # the candidate's and the baseline's, in two comparisons
    assert longer - slow >= (paired_benchmark.FLOOR_PAIRS - paired_benchmark.FLOOR_LEAST) * each


def test_inputs_of_timed_copies_are_drawn_once_for_both_and_once_for_what_they_must_give(monkeypatch, tmp_path):
    bench = CpuBench(monkeypatch, tmp_path, doubling(10.0))
    made, drawn = bench.bench.programs.inputs, Counter()

    def counted(case, key, variant="normal"):
        drawn[case.name, key, variant] += 1
        return made(case, key, variant)

    monkeypatch.setattr(bench.bench.programs, "inputs", counted)
    report = bench.evaluate(doubling(10.0))
    assert report.timings[0].terms["launches_per_sample"] == 16
    first = oracle.key_of("1") + FRESH
    times = [drawn["one", first + copy, "normal"] for copy in range(16)]
    # Some are drawn again: those that are compared with what is expected, and those that get other inputs meanwhile.
    assert min(times) == 2 and sum(n > 2 for n in times) <= FRESH + paired_benchmark.SWAPS

"""Finds inputs at which a kernel is wrong without evo's evaluator: it simply executes the kernel.

It calls the Python entry on real tensors, in Triton's own interpreter (device "interpret") or on a GPU (device "cuda").
It compares the result with the task's reference in float64, or with what the seed kernel's own Python returns, if the
task has no other reference.  These are sources that the user trusts, so they need no sandbox.  But a wrong kernel can
crash its process or run for ever, so processes of their own execute them (`observe`).

`python -m analysis.benchmarks.witnesses DEVICE` is such a process: a job is a line of JSON on its standard input, the
answer a line on its standard output.  An answer that says "broken" is the last of its process.

The status of a kernel at a place (`PLACES`):

    wrong           an error of more than CLEAR times the oracle's budget, or a wrong shape, type or integer
    outside-write   it writes outside of every array of its launch
    crash           the GPU reports a bad address, or the process died
    unclear         an error of 1 to CLEAR times the budget
    outside-read    it reads outside of every array of its launch, and its results are right all the same
    invalid         it does not compile, or its host code raises
    unfinished      it did not end, or there was not enough memory
    right           none of these

Instead of a place a job may name a rule of `peer_checks`; its status is then "accepted", "refused" or one of these.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

from analysis.benchmarks import peer_checks
from analysis.benchmarks.kernel_sets import tests_of
from analysis.benchmarks.mutants import first_configuration
from evo.core.records import Case
from fitness.tasks.task import Task, load_task

DEVICES = ("interpret", "cuda")
CLEAR = 4.0  # times the budget: beyond, it is wrong without doubt
WRONG = frozenset({"wrong", "outside-write", "crash"})
# The sizes of a task's cases for a CPU, those for a GPU, and sizes in between, each axis within what the cases have.
PLACES = ("cpu", "gpu", "elsewhere")
PLACES_OF: Mapping[str, tuple[str, ...]] = {"interpret": ("cpu", "elsewhere"), "cuda": ("gpu",)}
SOFT_S = 15.0  # for a job: after it no further inputs are tried
HARD_S = 90.0  # after it the process is ended
MULTIPROCESSORS = 132  # of the GPU that host code asks about in the interpreter: as many as an H100 or H200 has
PAD = 4096  # elements before and after each input on a GPU, filled with what spoils a result

# One axis long, the others short: what Triton's interpreter executes in about a second.
_BETWEEN: Mapping[str, Sequence[str]] = {
    "attention": ("Z=1 H=1 S=201 D=32", "Z=2 H=3 S=50 D=32", "Z=1 H=1 S=64 D=128"),
    "cross_entropy": ("M=3 V=5001", "M=3 V=2048", "M=150 V=100"),
    "gemv_batched": ("B=3 M=13 K=1501", "B=3 M=600 K=64", "B=40 M=16 K=77"),
    "int8_matmul": ("M=16 N=45 K=701", "M=16 N=700 K=37", "M=300 N=45 K=37"),
    "layer_norm": ("M=3 N=3001", "M=3 N=1024", "M=200 N=128"),
    "matmul": ("M=32 N=64 K=701", "M=32 N=700 K=53", "M=400 N=64 K=53"),
    "matmul_backward": ("B=1 M=400 N=19 K=32", "B=1 M=32 N=301 K=32", "B=1 M=32 N=19 K=300", "B=20 M=32 N=19 K=32"),
    "rms_norm": ("M=4 N=3001", "M=4 N=1024", "M=200 N=128"),
    "rotary": ("B=1 S=150 H=3 D=20", "B=1 S=4 H=32 D=128", "B=8 S=4 H=3 D=20"),
    "scatter": ("M=8 R=12 N=1501", "M=200 R=300 N=43", "M=8 R=5000 N=43"),
    "softmax": ("M=3 N=5001", "M=3 N=1024", "M=200 N=64"),
    "vector_sin": ("N=4096", "N=2999", "N=1000"),
}

Answer = dict[str, Any]
Job = tuple[str, str, str, str]  # id, task, place or rule, source


def cases_at(task: Task, place: str) -> list[Case]:
    """The sizes of a task at one of PLACES."""
    if place == "gpu":
        return list(task.cases)
    if place == "cpu":
        return [case.on_cpu() for case in task.cases]
    texts = _BETWEEN.get(task.name, ())
    sizes = [{a: int(n) for a, n in (pair.split("=") for pair in text.split())} for text in texts]
    return [Case(f"between-{i}", axes, task.cases[0].dtype, "holdout") for i, axes in enumerate(sizes)]


# --- one kernel ------------------------------------------------------------------------------------------------------


class OutsideWrite(Exception):
    """A store outside of every array of its launch."""


class AccessWatch:
    """Checks the address of each access in Triton's interpreter, and keeps those outside from memory."""

    def __init__(self) -> None:
        from triton.runtime import interpreter

        self.read, self.written = False, False
        self._ranges: list[tuple[int, int]] = []
        self._real: Any = interpreter._interpreter
        names = {n: getattr(self._real, n) for n in dir(self._real) if not n.startswith("__")}
        own = {"load": self._load, "store": self._store, "atomic_rmw": self._rmw, "atomic_cas": self._cas}
        interpreter._interpreter = SimpleNamespace(**{**names, **own})
        launch = interpreter.GridExecutor.__call__

        def watched(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self._ranges = [_range(a) for a in (*args, *kwargs.values()) if hasattr(a, "data_ptr")]
            return launch(executor, *args, **kwargs)

        interpreter.GridExecutor.__call__ = watched
        patch = interpreter._patch_lang_tensor

        def patched(tensor: Any, *args: Any) -> None:
            patch(tensor, *args)
            tensor.__index__ = lambda self: int(self.handle.data.item())  # Triton 3.6 fails beside NumPy 2.4

        interpreter._patch_lang_tensor = patched

    def reset(self) -> None:
        self.read = self.written = False

    def _outside(self, addresses: Any, mask: Any, size: int) -> Any:
        """Returns which elements of an access lie outside."""
        import numpy as np

        places = addresses.astype(np.int64)
        inside = np.zeros(places.shape, dtype=bool)
        for first, end in self._ranges:
            inside |= (places >= first) & (places + size <= end)
        return mask.astype(bool) & ~inside

    def _load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        import numpy as np

        outside = self._outside(addresses, mask, np.dtype(dtype).itemsize)
        if not outside.any():
            return self._real.load(addresses, mask, other, dtype)
        self.read = True
        found = self._real.load(addresses, mask & ~outside, other, dtype)
        poison = np.nan if np.issubdtype(found.dtype, np.floating) else np.iinfo(found.dtype).max
        return np.where(outside, np.array(poison, dtype=found.dtype), found)

    def _check(self, addresses: Any, mask: Any, size: int) -> None:
        if self._outside(addresses, mask, size).any():
            self.written = True
            raise OutsideWrite

    def _store(self, addresses: Any, value: Any, mask: Any) -> Any:
        self._check(addresses, mask, value.dtype.itemsize)
        return self._real.store(addresses, value, mask)

    def _rmw(self, operation: Any, addresses: Any, value: Any, mask: Any, order: Any) -> Any:
        self._check(addresses, mask, value.dtype.itemsize)
        return self._real.atomic_rmw(operation, addresses, value, mask, order)

    def _cas(self, addresses: Any, expected: Any, value: Any, order: Any) -> Any:
        self._check(addresses, addresses == addresses, value.dtype.itemsize)
        return self._real.atomic_cas(addresses, expected, value, order)


def _range(tensor: Any) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


@contextmanager
def on_cpu() -> Iterator[None]:
    """Puts tensors on the CPU that host code wants on a GPU, and lets them say that they lie there."""
    from torch import Tensor, device
    from torch.overrides import TorchFunctionMode

    def placed(value: Any) -> Any:
        named = isinstance(value, (str, device)) and str(value).startswith("cuda")
        return "cpu" if named or (type(value) is int and value == 0) else value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if function is Tensor.cuda:
                return args[0]
            if function == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
                return True
            if function is Tensor.to:
                args = (args[0], *(placed(a) if isinstance(a, (str, device)) else a for a in args[1:]))
            if kwargs.get("device") is not None:
                kwargs["device"] = placed(kwargs["device"])
            return function(*args, **kwargs)

    with OnCpu():
        yield


def _choose_first_configurations() -> None:
    """Makes `triton.autotune` take the first configuration: without a GPU, Triton cannot even make an autotuner."""
    import triton
    from triton.runtime.jit import KernelInterface

    class FirstConfiguration(KernelInterface):  # type: ignore[misc, type-arg]
        def __init__(self, kernel: Any, settings: Mapping[str, Any]) -> None:
            self.fn, self._settings = kernel, settings

        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            return self.fn.run(*args, grid=grid, warmup=warmup, **{**self._settings, **kwargs})

        def __getattr__(self, name: str) -> Any:
            return getattr(self.fn, name)

    def autotune(configs: Sequence[Any], *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda kernel: FirstConfiguration(kernel, configs[0].kwargs)

    triton.autotune = autotune


class Lab:
    """Executes kernels on one device and compares what they return."""

    def __init__(self, device: str) -> None:
        import torch

        self.place = "cuda" if device == "cuda" else "cpu"
        self.watch = AccessWatch() if device == "interpret" else None
        if self.watch is not None:
            device_facts: Any = lambda *_: SimpleNamespace(multi_processor_count=MULTIPROCESSORS)  # noqa: E731
            nowhere: Any = lambda *_: nullcontext()  # noqa: E731
            torch.cuda.get_device_properties = device_facts
            torch.cuda.device = torch.cuda.device_of = nowhere  # type: ignore[assignment, misc]
            torch.cuda.synchronize = lambda *_: None
            _choose_first_configurations()
        torch.use_deterministic_algorithms(True, warn_only=True)  # for the next line: empty memory is filled with NaN
        memory: Any = torch.utils.deterministic
        memory.fill_uninitialized_memory = True
        self._task: Task | None = None
        self._loaded = ""
        self._seed: ModuleType | None = None  # of a task whose reference is its seed kernel
        self._expected: dict[tuple[str, str], tuple[Any, int]] = {}  # with a sum of its bits
        self._scripts = peer_checks.TestScripts()
        self._folder = tempfile.TemporaryDirectory(prefix="evo-witness-")

    def look(self, job: Job, soft_s: float = SOFT_S) -> Answer:
        """Tries a kernel at a place: returns the first inputs at which it is wrong, or the worst of those tried."""
        _, name, place, source = job
        begin = time.perf_counter()
        if place in peer_checks.RULES:
            found = self._by_rule(name, place, source)
        else:
            found = self._at(name, place, source, begin + soft_s)
        return {**_known(job), **found, "seconds": round(time.perf_counter() - begin, 3)}

    def _at(self, name: str, place: str, source: str, until: float) -> Answer:
        worst: Answer = {"status": "right", "error": 0.0}
        tried = 0
        if self.watch is not None:
            self.watch.reset()
        try:
            task = self._load(name)
            module = self._imported(source)
            for variant, case in _inputs(task, place):
                if time.perf_counter() > until:
                    worst["unfinished"] = True
                    break
                found = self._once(task, getattr(module, task.entry), case, variant)
                tried += 1
                if _rank(found) > _rank(worst):
                    worst = found
                if worst["status"] in WRONG | {"invalid", "unfinished"}:
                    break
        except Exception as error:
            worst = self._raised(error)
        return {**worst, "tried": tried}

    def _by_rule(self, name: str, rule: str, source: str) -> Answer:
        """Returns what a rule of `peer_checks` says: "accepted", "refused"; "unfinished" for want of memory."""
        import torch

        if self.watch is not None:
            self.watch.reset()
        try:
            task = self._load(name)
            if rule == peer_checks.KERNELBENCH:
                self._kernelbench(task, source)
            else:
                tests = tests_of(Path(name)).read_text(encoding="utf-8")
                with self._own_code():
                    self._scripts.check(task.needed_seed, source, tests, values=rule == peer_checks.TESTS)
                    self._wait()
            return {"status": "accepted"}
        except (MemoryError, torch.OutOfMemoryError) as error:
            return {"status": "unfinished", "message": str(error)[:500]}
        except Exception as error:
            found = self._raised(error)
            return {"status": "refused", "message": f"{type(error).__name__}: {error}"[:500]} | {
                key: value for key, value in found.items() if key == "broken"
            }

    def _kernelbench(self, task: Task, source: str) -> None:
        from fitness.tasks.task import run_reference
        from fitness.verify import oracle

        first = cases_at(task, "gpu" if self.place == "cuda" else "cpu")[0]
        entry = getattr(self._imported(source), task.entry)

        def draw(seed: int) -> Sequence[Any]:
            return oracle.make_inputs(task, first, seed, device=self.place)

        def kernel(*arguments: Any) -> list[Any]:
            return self._outputs(task, entry, arguments)

        def reference(*arguments: Any) -> Sequence[Any]:
            if task.reference is None:
                return self._outputs(task, getattr(self._original(task), task.entry), arguments)
            return run_reference(task, arguments, copy=False, where=task.name)[1]

        peer_checks.kernelbench(draw, reference, kernel)

    def _outputs(self, task: Task, entry: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
        """Returns what an entry returns, then the arguments that it writes."""
        with self._own_code():
            result = entry(*arguments)
            self._wait()
        outputs = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
        return [*outputs, *(arguments[i] for i in task.written if arguments[i] is not None)]

    def _load(self, name: str) -> Task:
        if self._task is None or self._loaded != name:
            self._task, self._loaded, self._seed = load_task(name, tried=True), name, None
            self._expected.clear()
        return self._task

    def _original(self, task: Task) -> ModuleType:
        """Returns the module of the seed kernel, with the first configuration of each autotuned kernel."""
        if self._seed is None:
            self._seed = self._imported(first_configuration(task.needed_seed))
        return self._seed

    def _imported(self, source: str) -> ModuleType:
        path = Path(self._folder.name) / f"kernel_{time.monotonic_ns()}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with self._own_code():
            spec.loader.exec_module(module)
        return module

    def _own_code(self) -> AbstractContextManager[None]:
        """Around a kernel's own Python."""
        return nullcontext() if self.watch is None else on_cpu()

    def _once(self, task: Task, entry: Callable[..., Any], case: Case, variant: str) -> Answer:
        from fitness.verify import oracle

        where = {"case": case.name, "axes": dict(case.axes), "variant": variant}
        expected = self._expect(task, case, variant)
        if expected is None:
            return {"status": "right", "error": 0.0}
        arguments = [self._guarded(a) for a in oracle.make_inputs(task, case, 0, variant, device=self.place)]
        if self.watch is not None:
            self.watch.reset()
        try:
            outputs = self._outputs(task, entry, arguments)
        except Exception as error:
            return {**self._raised(error), **where}
        if not self._intact(case, variant):
            message = "an array that is not its own was written to"
            return {"status": "outside-write", "error": "inf", "message": message, "broken": True, **where}
        off = error_of(expected, outputs)
        status = "wrong" if off > CLEAR else "unclear" if off > 1 else "right"
        if status == "right" and self.watch is not None and self.watch.read:
            status = "outside-read"
        return {"status": status, "error": off if math.isfinite(off) else "inf", **where}

    def _expect(self, task: Task, case: Case, variant: str) -> Any:
        from fitness.verify import oracle

        key = (case.name, variant)
        if key not in self._expected:
            if task.reference is None:
                expected = self._expect_of_seed(task, case, variant)
            else:
                expected = oracle.expect(task, case, 0, variant, device=self.place)
            self._expected[key] = expected, _bits(expected)
        return self._expected[key][0]

    def _expect_of_seed(self, task: Task, case: Case, variant: str) -> Any:
        """Returns what the seed kernel's own Python returns, as a right kernel's outputs; None if nothing is finite."""
        import torch

        from fitness.verify import oracle, seed_oracle

        entry = getattr(self._original(task), task.entry)
        plain = oracle.make_inputs(task, case, 0, variant, device=self.place)
        moved = seed_oracle.moved(task, oracle.make_inputs(task, case, 0, variant, device=self.place), 0)
        own, after = (self._outputs(task, entry, arguments) for arguments in (plain, moved))
        if not all(isinstance(value, torch.Tensor) for value in own):
            return None
        own, after = [value.clone() for value in own], [value.clone() for value in after]
        strides = [SimpleNamespace(strides=value.stride()) for value in own]
        return seed_oracle.expect(task, plain, "", strides, own, after)  # type: ignore[arg-type]

    def _intact(self, case: Case, variant: str) -> bool:
        """Returns whether the expected values are unchanged: a kernel can write to them too."""
        expected, bits = self._expected[case.name, variant]
        intact = self.watch is not None or _bits(expected) == bits
        if variant != "normal" and self.watch is None:
            del self._expected[case.name, variant]  # memory of a GPU
        return intact

    def _guarded(self, value: Any) -> Any:
        """On a GPU: the tensor between elements that spoil what is computed from them."""
        import torch

        if self.watch is not None or not isinstance(value, torch.Tensor) or not value.is_contiguous():
            return value
        poison = math.nan if value.is_floating_point() else torch.iinfo(value.dtype).max
        around = torch.full((value.numel() + 2 * PAD,), poison, dtype=value.dtype, device=value.device)
        inside = around[PAD : PAD + value.numel()]
        inside.copy_(value.flatten())
        return inside.view(value.shape)

    def _wait(self) -> None:
        import torch

        if self.place == "cuda":
            torch.cuda.synchronize()

    def _raised(self, error: Exception) -> Answer:
        import torch

        message = f"{type(error).__name__}: {error}"[:500]
        if self.watch is not None and self.watch.written:
            return {"status": "outside-write", "error": "inf", "message": "a store outside of every array"}
        broken = ("CUDA error", "illegal", "misaligned", "unspecified launch failure")
        if self.place == "cuda" and (any(text in message for text in broken) or self._is_broken()):
            return {"status": "crash", "error": "inf", "message": message, "broken": True}
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return {"status": "unfinished", "message": message}
        return {"status": "invalid", "message": message}

    def _is_broken(self) -> bool:
        """An earlier launch of the same kernel broke the context, and something else was noticed first."""
        try:
            self._wait()
        except RuntimeError:
            return True
        return False


def _inputs(task: Task, place: str) -> Iterator[tuple[str, Case]]:
    """Plain inputs of all sizes first, then the oracle's other variants."""
    from fitness.verify import oracle

    for variant in oracle.variants(task):
        yield from ((variant, case) for case in cases_at(task, place))


_ORDER = ("right", "outside-read", "unclear", "unfinished", "invalid", "wrong", "outside-write", "crash")


def _rank(answer: Answer) -> tuple[int, float]:
    return _ORDER.index(answer["status"]), float(answer.get("error", 0.0))


def _bits(expected: Any) -> int:
    """A sum over all outputs that any change of one element changes."""
    import torch

    if expected is None:
        return 0
    return sum(int(o.contiguous().reshape(-1).view(torch.uint8).sum(dtype=torch.int64)) for o in expected.outputs)


def error_of(expected: Any, outputs: Sequence[Any]) -> float:
    """The error of what a kernel returned, in units of the oracle's budget; infinite for a wrong form or a NaN."""
    import torch

    if len(outputs) != len(expected.outputs):
        return math.inf
    worst = 0.0
    for exact, dtype, budget, got in zip(expected.outputs, expected.dtypes, expected.budgets, outputs, strict=True):
        if not isinstance(got, torch.Tensor) or got.shape != exact.shape or got.dtype != dtype:
            return math.inf
        if budget is None:
            worst = worst if bool((got == exact).all()) else math.inf
            continue
        # A seed kernel's results need not be finite; then nothing is said about these elements.
        off = torch.where(torch.isfinite(exact), (got.double() - exact).abs(), 0.0)
        if not got.numel():
            continue
        if not bool(torch.isfinite(off).all()):
            return math.inf
        rms = float(off.square().mean().sqrt())
        worst = max(worst, _over(rms, budget.rms), _over(float(off.max()), budget.max))
    return worst


def _over(error: float, budget: float) -> float:
    return error / budget if budget else math.inf if error else 0.0


def serve(device: str) -> None:
    """Answers jobs until the input ends."""
    import numpy as np

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a kernel prints is not an answer
    np.seterr(all="ignore")
    lab = Lab(device)
    for line in sys.stdin:
        print(json.dumps(lab.look(tuple(json.loads(line)))), file=answers, flush=True)


# --- many kernels ----------------------------------------------------------------------------------------------------


class Process:
    """A process that executes kernels; started again when it died, took too long, or was broken by a kernel."""

    def __init__(self, device: str, cache: Path, gpu: str = "") -> None:
        self._command = [sys.executable, "-m", "analysis.benchmarks.witnesses", device]
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(cache)}
        self._environment["CUDA_VISIBLE_DEVICES"] = gpu
        self._environment.pop("TRITON_INTERPRET", None)
        if device == "interpret":
            self._environment["TRITON_INTERPRET"] = "1"
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, job: Job, hard_s: float = HARD_S) -> Answer:
        """The answer to a job; "unfinished" or "crash" if there was none.  Who died is asked once more."""
        return self._asked(job, hard_s) or self._asked(job, hard_s) or {
            **_known(job), "status": "crash", "error": "inf", "message": "the process died"
        }  # fmt: skip

    def _asked(self, job: Job, hard_s: float) -> Answer | None:
        """None if the process died."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            line = _line(process.stdout, time.monotonic() + hard_s)
        except BrokenPipeError:
            line = b""
        if line is None:
            answer: Answer | None = {**_known(job), "status": "unfinished", "message": f"no answer within {hard_s:g} s"}
        else:
            answer = json.loads(line) if line else None
        if not line or answer is None or answer.get("broken"):
            self.close()
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            bufsize=0,
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _known(job: Job) -> Answer:
    return {"id": job[0], "task": job[1], "place": job[2]}


def _line(source: IO[bytes], deadline: float) -> bytes | None:
    """The next line; b"" at the end of the input, None if it takes too long."""
    found = b""
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(source.fileno(), 1 << 16)
        if not piece:
            return b""
        found += piece
    return found


def gpus_here() -> list[str]:
    """Returns the GPUs of this process, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    from fitness.cuda.gpus import visible

    return visible(torch.cuda.device_count())


@contextmanager
def _closing(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.close()


def observe(jobs: Sequence[Job], device: str, processes: int, tell: Callable[[Answer], None]) -> None:
    """Executes all jobs, each in one of `processes` processes; `tell` gets the answers as they come, one at a time.

    The processes share all GPUs.
    """
    gpus = gpus_here() if device == "cuda" else [""]
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    telling = threading.Lock()
    failed: list[BaseException] = []

    def work(cache: Path, number: int) -> None:
        try:
            with _closing(Process(device, cache, gpus[number % len(gpus)])) as process:
                while not failed:
                    answer = process.ask(waiting.get_nowait())
                    with telling:
                        tell(answer)
        except queue.Empty:
            pass
        except BaseException as error:
            failed.append(error)

    with tempfile.TemporaryDirectory(prefix="evo-witness-cache-") as cache:
        numbers = range(min(processes, len(jobs)))
        threads = [threading.Thread(target=work, args=(Path(cache), number)) for number in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


if __name__ == "__main__":
    serve(sys.argv[1])

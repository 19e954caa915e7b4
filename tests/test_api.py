"""evo as a library: with an instant evaluator, and at the end with everything real on a small task, without a GPU."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import evo
from analysis.benchmarks.endpoint import Ask, Endpoint, answer_to, context
from analysis.benchmarks.instant import SEED_SOURCE
from evo import api
from evo.cli.main import _parser
from evo.cli.run import _SETTINGS
from evo.core.errors import ConfigError, EvoError, StoreError, TaskError
from evo.core.records import Candidate, Certificate, Verdict
from evo.search import assemble, evaluators
from evo.search.listener import Listener
from evo.storage.store import RunReader
from tests.cli_support import BROKEN, CliEvaluator, install
from tests.engine_support import create, facts, ok_trial
from tests.test_cli import ROOT, run_verdict
from tests.test_cli import run as command


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CliEvaluator]:
    """Evaluators that were opened; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch.setattr)


class Heard(Listener):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


# --- the package -----------------------------------------------------------------------------------------------------


def test_the_package_has_its_names_and_is_light() -> None:
    code = (
        "import sys, evo\n"
        "heavy = {'torch', 'triton', 'deap', 'ray', 'rich', 'openai', 'numpy', 'libcst', 'sqlite3'}\n"
        "assert {'search', 'Evaluator', 'load_task', 'Task', 'Case', 'Model', 'Result'} <= set(dir(evo))\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "for name in dir(evo):\n"
        "    getattr(evo, name)\n"
        "assert not (heavy - {'numpy', 'libcst', 'sqlite3'}) & set(sys.modules), heavy & set(sys.modules)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert sorted(evo.__all__) == dir(evo)
    with pytest.raises(AttributeError, match="module 'evo' has no attribute 'serach'"):
        evo.serach  # noqa: B018


def test_the_package_of_the_search_is_the_function_too() -> None:
    import evo.search.engine

    assert evo.search.engine.Engine.__name__ == "Engine"
    assert inspect.signature(evo.search) == inspect.signature(api.search)


def test_defaults_are_those_that_the_command_line_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("run", "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    parameters = inspect.signature(api.search).parameters
    default = {name: parameter.default for name, parameter in parameters.items()}
    assert f"candidates to evaluate (default: {default['budget']})" in shown
    assert f"of all randomness (default: {default['seed']})" in shown
    assert f"--strategy STRATEGY {default['strategy']} (default)" in shown
    assert f"{default['target']}, an H200 (default)" in shown
    arguments = vars(_parser().parse_args(["run"]))
    assert {arguments[option] for option in _SETTINGS} == {None}, "what is not given is no setting"
    assert set(api.Settings.__annotations__) == set(parameters) - {"task", "run_dir", "progress", "stop"}
    assert set(api.Settings.__annotations__) == set(_SETTINGS.values())


def test_a_task_is_a_name_a_folder_or_a_task() -> None:
    task = evo.load_task("softmax")
    assert isinstance(task, evo.Task) and evo.load_task(task) is task
    assert evo.load_task(task.folder).hash == task.hash
    with pytest.raises(TaskError, match=r"no task 'sofmax': .*; did you mean softmax\?"):
        evo.load_task("sofmax")


# --- search ----------------------------------------------------------------------------------------------------------


def test_a_search_is_that_of_the_command_line(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = evo.search("softmax", budget=15, seed=3, workers=1, run_dir="a")
    assert capsys.readouterr() == ("", ""), "a library says nothing unless it is asked to"
    assert command("run", "--budget", "15", "--seed", "3", "--workers", "1", "--run-dir", "b") == 0
    assert facts(tmp_path / "a") == facts(tmp_path / "b")
    assert [e.closed for e in opened] == [True, True]
    assert all((tmp_path / name / "best/evidence.json").exists() for name in "ab")
    assert result.run_dir == Path("a") and result.config.seed == 3


def test_a_result_says_what_was_found(opened: list[CliEvaluator]) -> None:
    result = evo.search("softmax", budget=40, workers=1, run_dir="out")
    written = json.loads(Path("out/best/result.json").read_text())
    assert result.best is not None and result.seed is not None and result.certificate is not None
    assert (result.best.speedup, list(result.best.ci95), result.best.trial) == (
        written["speedup"], written["ci95"], written["trial"],
    )  # fmt: skip
    assert result.best.source == Path("out/best/kernel.py").read_text()
    assert result.best.patch == Path("out/best/diff.patch").read_text()
    assert (result.best.verdict, result.best.estimated) == (Verdict.OK, True)
    assert result.seed.proposal.candidate.source == SEED_SOURCE
    assert result.certificate.message == "nothing is executed"
    assert (result.stop_reason, result.pending) == ("budget spent", 0)
    assert dataclasses.astuple(result.spent) == (40, 0.0, 0, 0)
    assert len(list(result.trials)) == 41 == len(list(result.trials))
    assert "estimated, budget spent" in repr(result)
    again = evo.Result.open("out/best")
    assert again.best == result.best and again.spent == result.spent


def test_a_run_that_goes_on_has_a_result_too(opened: list[CliEvaluator]) -> None:
    api.propose("out", 3, "softmax")
    proposed = evo.Result.open("out")
    assert (proposed.best, proposed.seed, proposed.certificate, proposed.pending) == (None, None, None, 4)
    with pytest.raises(StoreError, match="expected a run in nowhere"):
        evo.Result.open("nowhere")


def test_the_halves_of_a_search(opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch) -> None:
    assert api.propose("out", 3, "softmax", budget=5).proposed == 3
    assert opened == [], "proposing starts no evaluator"
    result = api.evaluate_pending("out")
    assert result is not None and (result.spent.candidates, result.stop_reason) == (3, "nothing is pending")
    assert api.evaluate_pending("out") is None
    with pytest.raises(ConfigError, match="--seed: the run in out was started with 0, got 7"):
        api.propose("out", 1, seed=7)


def test_gpu_seconds_are_counted_where_a_gpu_measures(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=1, name="H200", problem=""))
    result = evo.search("softmax", budget=500, gpu_seconds=9, gpus=1, workers=1, run_dir="out")
    assert result.config.gpus == "1" and result.stop_reason == "budget spent"
    assert result.spent.gpu_seconds >= 9 and result.spent.candidates < 500


def test_the_seed_is_free_in_every_count_of_what_was_spent(tmp_path: Path) -> None:
    with create(tmp_path, device="gpu") as store:
        for index, seconds in enumerate((5.0, 1.5, 1.0)):
            trial = ok_trial(index, operator="grow" if index else "seed")
            store.proposed(trial.proposal)
            store.finished(
                dataclasses.replace(trial, evaluation=dataclasses.replace(trial.evaluation, seconds={"time": seconds}))
            )
    spent = evo.Result.open(tmp_path).spent
    assert (spent.candidates, spent.gpu_seconds) == (2, 2.5)


def test_progress_is_printed_or_heard(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()
    evo.search("softmax", budget=2, run_dir="heard", progress=heard)
    assert heard.lines[1:] == [
        "preparing softmax: evaluating its seed kernel",
        "ended: budget spent, 2 candidates evaluated",
    ]
    assert capsys.readouterr().out == ""
    evo.search("softmax", budget=2, run_dir="printed", progress=True)
    out = capsys.readouterr().out
    assert "[2/2] trial" in out and "ended: budget spent" in out


def test_a_search_that_was_stopped_goes_on(opened: list[CliEvaluator], tmp_path: Path) -> None:
    stopped = evo.search("softmax", budget=25, workers=1, run_dir="parts", stop=lambda: len(opened[0].evaluated) > 5)
    assert stopped.stop_reason == "interrupted" and stopped.spent.candidates < 25
    whole = evo.search("softmax", budget=25, workers=1, run_dir="whole")
    assert evo.resume("parts").best == whole.best
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")
    evaluated = len(opened)
    assert evo.resume("parts").stop_reason == "budget spent" and len(opened) == evaluated
    assert evo.resume("parts", 30).spent.candidates == 30
    with pytest.raises(ConfigError, match="expected at least the 30 candidates spent, got 3"):
        evo.resume("parts", budget=3)


def test_a_search_goes_on_with_new_versions_where_asked(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = evo.search("softmax", budget=3, run_dir="out").best
    monkeypatch.setattr("evo.core.versions.own_versions", lambda: {"evo": "another"})
    monkeypatch.setattr("evo.core.versions.versions", lambda: {"evo": "another"})
    assert command("resume", "out", "--budget", "5") == 2
    with pytest.raises(StoreError, match="or go on with the new ones by --new-versions of evo resume"):
        evo.resume("out", 5)
    assert command("resume", "out", "--budget", "5", "--new-versions") == 0
    result = evo.resume("out", 6)
    assert result.spent.candidates == 6 and result.best.speedup >= before.speedup


def test_ctrl_c_is_raised_and_leaves_a_run_to_go_on_with(opened: list[CliEvaluator]) -> None:
    def pressed() -> bool:
        if len(opened[0].evaluated) > 5:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        evo.search("softmax", budget=25, workers=1, run_dir="out", stop=pressed)
    assert opened[0].closed
    assert evo.resume("out").spent.candidates == 25


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budget": 0}, "budget: expected an integer from 1 to 10000000, got 0"),
        ({"budget": "many"}, "budget: expected an integer from 1 to 10000000, got 'many'"),
        ({"workers": 0}, "workers: expected an integer from 1 to 1024, got 0"),
        ({"strategy": "evolv"}, "got 'evolv'; a plug-in is given by --plugin FILE; did you mean evolve?"),
        ({"strategy": "best-of-n"}, "expected a model to ask, got none"),
        ({"operators": "nudge"}, "operators: expected a list of names, got 'nudge'; write ['nudge']"),
        ({"operators": [3]}, "operator 3: expected an attribute `name`"),
        ({"operators": ["nothing"]}, "'nothing'"),
        ({"models": "m@https://x.example/v1"}, "models: expected a list of models, got 'm@https"),
        ({"models": [3]}, "Model(...) or Model.from_callable(NAME, FUNCTION), got 3"),
        ({"models": ["m"]}, "expected NAME@BASE_URL"),
        ({"gpus": "many"}, "--gpus: expected a number from 1, all or none, got 'many'"),
        ({"gpus": 2}, "--gpus 2: expected a GPU, but torch sees no CUDA GPU"),
        ({"target": "sm_1"}, "target: expected one of sm_90, h100, sm_80, sm_89, rtx4090, sm_100, got 'sm_1'"),
        ({"max_tokens": 9}, "--max-tokens: expected a model whose answers it limits"),
        ({"ray_address": "head"}, "expected HOST:PORT of a Ray cluster"),
        ({"task": ""}, "TASK: expected a built-in task or a task folder, got ''"),
    ],
)
def test_wrong_settings_are_errors_as_on_the_command_line(
    opened: list[CliEvaluator], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        evo.search(**{"task": "softmax", "run_dir": "out", **settings})
    assert words in str(raised.value)
    assert not Path("out").exists() and not opened


def test_a_wrong_seed_kernel_and_a_taken_folder_are_errors(opened: list[CliEvaluator]) -> None:
    with pytest.raises(TaskError, match="expected a right seed kernel"):
        evo.search(BROKEN, run_dir="out")
    assert not Path("out").exists() and opened[0].closed
    evo.search("softmax", budget=1, run_dir="out")
    with pytest.raises(StoreError, match="holds one; go on with it by `evo resume out`"):
        evo.search("softmax", budget=1, run_dir="out")


# --- evaluating ------------------------------------------------------------------------------------------------------


def sources(count: int) -> Iterator[str]:
    return (SEED_SOURCE.replace("(100, 100, 100)", f"({number}, 0, 0)") for number in range(count))


def test_kernels_are_evaluated_in_their_order(opened: list[CliEvaluator]) -> None:
    with evo.Evaluator("softmax", workers=3) as evaluator:
        assert evaluator.seed.speedup == 1.0 and not evaluator.measured and "estimating" in evaluator.description
        found = list(evaluator.evaluate_many(sources(30)))
        assert [e.candidate for e in found] == [Candidate(source).id for source in sources(30)]
        verdicts = {e.verdict for e in found}
        assert verdicts == {Verdict.OK, Verdict.WRONG}
        for evaluation in found:
            assert (evaluation.speedup is None) == (evaluation.verdict is not Verdict.OK)
            assert (evaluation.fitness is None) == (evaluation.speedup is None)
        assert evaluator.evaluate(SEED_SOURCE) == evaluator.evaluate(SEED_SOURCE)
    assert opened[0].closed


def test_sources_are_taken_as_workers_become_free(opened: list[CliEvaluator]) -> None:
    taken = []

    def endless() -> Iterator[str]:
        for source in sources(1_000_000):
            taken.append(source)
            yield source

    with evo.Evaluator("softmax", workers=2) as evaluator:
        evaluations = evaluator.evaluate_many(endless())
        assert next(evaluations).candidate == Candidate(next(sources(1))).id
        assert len(taken) == 3
        evaluations.close()


def test_only_what_is_ok_is_certified(opened: list[CliEvaluator]) -> None:
    wrong = next(source for source in sources(1000) if not run_verdict(source))
    with evo.Evaluator("softmax") as evaluator:
        assert evaluator.certify(SEED_SOURCE).message == "nothing is executed"
        certificate = evaluator.certify(wrong)
    assert certificate.verdict is Verdict.WRONG
    assert certificate.message == "not run, for the kernel is not ok: at stage verify: wrong result"


def test_the_known_evaluation_is_not_made_again(opened: list[CliEvaluator]) -> None:
    with evo.Evaluator("softmax") as evaluator:
        evaluation = evaluator.evaluate(SEED_SOURCE)
        asked: Certificate = evaluator.certify(SEED_SOURCE, evaluation)
        assert asked.candidate == Candidate(SEED_SOURCE).id and len(opened[0].evaluated) == 1


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ("softmax", {"workers": 0}, "workers: expected at least 1, got 0"),
        ("softmax", {"workers": "2"}, "workers: expected at least 1, got '2'"),
        ("softmax", {"seed": -1}, "seed: expected an integer from 0"),
        ("softmax", {"target": "sm_1"}, "target: expected one of sm_90"),
        ("softmax", {"gpus": "some"}, "--gpus: expected a number from 1, all or none"),
        (BROKEN, {}, "expected a right seed kernel"),
    ],
)
def test_an_evaluator_that_cannot_be_had(
    opened: list[CliEvaluator], task: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(EvoError) as raised:
        evo.Evaluator(task, **settings)
    assert words in str(raised.value)
    assert all(evaluator.closed for evaluator in opened)


def test_a_kernel_is_given_as_text(opened: list[CliEvaluator]) -> None:
    with evo.Evaluator("softmax") as evaluator, pytest.raises(ConfigError, match="expected the source of a kernel"):
        evaluator.evaluate(Path("kernel.py"))  # type: ignore[arg-type]


# --- functions as models ---------------------------------------------------------------------------------------------


@pytest.fixture
def asking(opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch) -> list[CliEvaluator]:
    """With operators that ask, without real prompts."""
    import operators.registry
    from evo.llm import queue

    monkeypatch.setattr(operators.registry, "DEFAULT_LLM_OPERATORS", ("change", "mend"))
    monkeypatch.setattr(assemble, "prompt_context", lambda info, task: context)
    monkeypatch.setattr(queue, "BACKOFF_S", 0.01)
    monkeypatch.setattr(operators.registry, "LLM_OPERATORS", {o.name: o for o in (Ask(), Ask("mend", repairs=True))})
    return opened


class Answering:
    """Answers as the test server does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.threads: set[str] = set()

    def __call__(self, messages: list[dict[str, str]]) -> str:
        self.asked.append(messages)
        self.threads.add(threading.current_thread().name)
        return answer_to(messages[-1]["content"])


def test_a_function_is_a_model_as_an_endpoint_is(asking: Any, tmp_path: Path) -> None:
    function = Answering()
    result = evo.search(
        "task", budget=10, workers=1, models=[evo.Model.from_callable("m", function)], run_dir="function"
    )
    with Endpoint() as endpoint:
        evo.search("task", budget=10, workers=1, models=[f"m@{endpoint.url}"], run_dir="endpoint")
    assert {m["role"] for messages in function.asked for m in messages} == {"system", "user"}
    assert threading.current_thread().name not in function.threads
    one, other = (
        [(t.proposal.operator, t.proposal.candidate.id) for t in evo.Result.open(name).trials]
        for name in ("function", "endpoint")
    )
    assert one == other and any("@m" in operator for operator, _ in one)
    assert result.config.models == (evo.Model("m", "callable:Answering", concurrency=1, attempts=1),)
    assert result.spent.tokens is None, "a text alone does not say what it cost"
    assert (result.spent.candidates, result.stop_reason) == (10, "budget spent")


def test_a_run_with_a_function_is_read_without_it_and_goes_on_with_it(
    asking: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = evo.Model.from_callable("m", Answering())
    evo.search("task", budget=6, workers=1, models=[model], operators=["change"], run_dir="out")
    assert command("show", "out") == 0 and command("calls", "out") == 0 and command("replay", "out") == 0
    assert "all the same" in capsys.readouterr().out
    for resumed in (lambda: evo.resume("out", 9), lambda: evo.resume("out", 9, models=["m@callable:Answering"])):
        with pytest.raises(ConfigError, match=r"expected the Python function Answering, .*evo\.resume\(RUN, models="):
            resumed()
    assert command("resume", "out", "--budget", "9") == 2
    assert "go on from Python: evo.resume(RUN, models=[evo.Model.from_callable('m', Answering)])" in (
        capsys.readouterr().err
    )
    assert command("run", "task", "--model", "m@callable:Answering") == 2
    assert evo.resume("out", 9, models=[model]).spent.candidates == 9
    replayed = evo.search("task", budget=9, workers=1, models=["replay:out"], operators=["change"], run_dir="again")
    first, second = ([t.proposal.candidate.id for t in evo.Result.open(name).trials] for name in ("out", "again"))
    assert first == second and replayed.spent.candidates == 9
    with pytest.raises(ConfigError, match="expected models of the run"):
        evo.resume("out", 12, models=[evo.Model.from_callable("other", Answering())])


def counted(tokens_in: Any = 100, tokens_out: Any = 5000, **more: Any) -> Callable[..., Any]:
    return lambda messages: SimpleNamespace(
        text=answer_to(messages[-1]["content"]), tokens_in=tokens_in, tokens_out=tokens_out, **more
    )


def test_what_a_function_counts_is_limited(asking: Any) -> None:
    heard = Heard()
    model = evo.Model.from_callable("m", counted(), usd_in=1.0, usd_out=2.0)
    settings: Any = {"operators": ["change"], "workers": 1, "models": [model]}
    result = evo.search("task", budget=50, max_tokens=40_000, run_dir="out", progress=heard, **settings)
    assert result.spent.tokens is not None and 5100 <= result.spent.tokens <= 40_000
    assert result.stop_reason == "limit on tokens or dollars reached"
    assert result.spent.usd == pytest.approx(result.spent.tokens / 5100 * 0.0101)
    priced = evo.Model.from_callable("m", counted(usd=0.5), usd_in=1.0, usd_out=2.0)
    own = evo.search("task", budget=2, run_dir="own", operators=["change"], workers=1, models=[priced])
    assert own.spent.usd == 1.0
    with pytest.raises(ConfigError, match="--max-usd: expected a price for each model, got none for m"):
        evo.search("task", models=[evo.Model.from_callable("m", counted())], max_usd=1.0)


def test_a_function_that_fails_is_a_model_that_gives_no_answer(asking: Any) -> None:
    def fails(messages: object) -> str:
        raise RuntimeError("out of quota")

    heard = Heard()
    model = evo.Model.from_callable("m", fails)
    result = evo.search("task", budget=4, workers=1, models=[model], run_dir="out", progress=heard)
    assert result.stop_reason == "budget spent", "operators by rule go on alone"
    assert "model m gave no answer: RuntimeError: out of quota" in heard.lines
    assert "first failure of model m: RuntimeError: out of quota" in heard.lines


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda messages: None, "expected its function to return a text, or an object with text, tokens_in and"),
        (lambda messages: ["a"], "got ['a']; change what it returns"),
        (counted(tokens_in=-1), "expected tokens_in and tokens_out to be integers from 0, got -1 and 5000"),
        (counted(tokens_in=None), "got None and 5000"),
    ],
)
def test_a_function_that_returns_no_answer_ends_the_search(
    asking: Any, function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(EvoError) as raised:
        evo.search("task", budget=4, workers=1, models=[evo.Model.from_callable("m", function)], run_dir="out")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("name", "function", "settings", "words"),
    [
        ("m", "answer", {}, "model m: expected a function that takes messages, got 'answer'"),
        ("a b", Answering(), {}, "expected a name without spaces"),
        ("m", Answering(), {"colour": "red"}, "model m: expected settings among sent_as"),
        ("m", Answering(), {"endpoint": "x"}, "got endpoint"),
        ("m", Answering(), {"attempts": 0}, "attempts: expected an integer from 1, got 0"),
    ],
)
def test_functions_that_cannot_be_models(name: str, function: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        evo.Model.from_callable(name, function, **settings)
    assert words in str(raised.value)


def test_a_function_is_called_as_often_at_once_as_it_allows(asking: Any) -> None:
    at_once, most, begun, lock = 0, 0, 0, threading.Lock()
    together = threading.Barrier(2)

    def function(messages: list[dict[str, str]]) -> str:
        nonlocal at_once, most, begun
        with lock:
            at_once, begun = at_once + 1, begun + 1
            most, first = max(most, at_once), begun <= 2
        if first:
            together.wait(timeout=60)  # for each other: they run at once
        with lock:
            at_once -= 1
        return answer_to(messages[-1]["content"])

    model = evo.Model.from_callable("m", function, concurrency=2)
    evo.search("task", budget=8, workers=2, models=[model], operators=["change"], llm_concurrency=8, run_dir="out")
    assert most == 2


# --- everything real -------------------------------------------------------------------------------------------------

SEED = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * 3, mask=at < n)


def scale(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y
"""


def inputs(case, generator):
    return (torch.randn(case.axes["N"], generator=generator, device=generator.device),)


def reference(x):
    return 3 * x


def larger_blocks(messages: list[dict[str, str]]) -> str:
    source = messages[-1]["content"].split("```python\n")[1].split("```")[0]
    return f"Larger blocks.\n\n```python\n{source.replace('256', '512').replace('64', '256')}```\n"


def test_a_task_made_in_python_is_searched_with_a_function_as_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cases = [evo.Case("long", {"N": 1 << 20}, cpu_axes={"N": 512}), evo.Case("odd", {"N": 77}, role="holdout")]
    task = evo.Task(entry="scale", cases=cases, inputs=inputs, reference=reference, seed_source=SEED)
    with evo.Evaluator(task, gpus="none") as evaluator:
        good, bad = evaluator.evaluate_many([SEED.replace("64", "1024"), SEED.replace("x * 3", "x * 2")])
    assert good.verdict is Verdict.OK and good.speedup is not None and good.speedup > 1 and good.estimated
    assert (bad.verdict, bad.speedup) == (Verdict.WRONG, None) and "output is wrong" in bad.message

    folder = tmp_path / "run"
    model = evo.Model.from_callable("m", larger_blocks)
    settings: Any = {"models": [model], "operators": ["mutate", "rewrite"], "workers": 1, "gpus": "none"}
    result = evo.search(task, budget=2, run_dir=folder, **settings)
    assert result.best is not None and result.best.speedup > 1 and result.spent.candidates == 2
    with RunReader(folder) as run:
        assert run.info.config.task == str(evo.load_task(task).folder)
    assert {t.evaluation.verdict for t in result.trials} <= {Verdict.OK, Verdict.DUPLICATE}
    decisions = api.replay(folder)
    assert decisions and all(decision.same for decision in decisions)
    assert command("show", str(folder)) == 0 and "scale" in capsys.readouterr().out
    assert evo.resume(folder, budget=3, models=[model]).spent.candidates == 3

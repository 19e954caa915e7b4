"""Runs in halves: proposed without an evaluator, evaluated without proposing, by turns on one folder."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton

import evo.core.versions
from analysis.benchmarks.endpoint import Endpoint, Reply, llm_of
from analysis.benchmarks.instant import OPERATORS, SEED_SOURCE, InstantEvaluator, score
from evo import api
from evo.cli.main import main
from evo.core.models import Model
from evo.core.records import GPU_FACTS
from evo.search import evaluators
from evo.search.engine import Engine, EngineOutcome
from evo.storage.model_calls import stored_calls
from evo.storage.queries import RunReader
from evo.storage.store import Store
from tests.cli_support import LOG, NO_GPU, CliEvaluator, install, load
from tests.engine_support import ALL_OPERATORS, SlowEvaluator, create, facts, resume, search
from tests.test_cli import evo_process

# --- the engine ------------------------------------------------------------------------------------------------------


def propose(store: Store, count: int | None) -> EngineOutcome:
    return Engine(store, None, SEED_SOURCE, None, score, ALL_OPERATORS, proposals=count).run()


def evaluate(store: Store, evaluator: InstantEvaluator | None = None) -> EngineOutcome:
    evaluator = evaluator or InstantEvaluator()
    return Engine(store, evaluator.prepare(), SEED_SOURCE, evaluator, score, {}, proposals=0).run()


def by_turns(folder: Path, **changes: object) -> EngineOutcome:
    """A run of rounds of 8, each half with the store opened anew."""
    create(folder, **changes).close()
    for _ in range(100):
        with resume(folder) as store:
            propose(store, 8)
        with resume(folder) as store:
            outcome = evaluate(store)
        if outcome.reason == "budget spent":
            return outcome
    raise AssertionError("the budget is never spent")


@pytest.mark.parametrize(("strategy", "workers"), [("evolve", 1), ("random", 1), ("hillclimb", 1), ("evolve", 3)])
def test_halves_by_turns_are_a_search(tmp_path: Path, strategy: str, workers: int) -> None:
    outcome = by_turns(tmp_path, strategy=strategy, workers=workers, budget=60)
    assert outcome.spent == 60
    assert outcome.best is not None and outcome.best.fitness is not None and outcome.best.fitness.speedup > 1.05
    with RunReader(tmp_path) as run:
        trials = list(run.trials())
        assert run.pending() == []
    assert sorted(t.index for t in trials) == list(range(61))
    assert trials[0].index == 0, "the seed is finished first, whoever evaluates beside it"
    assert len({t.proposal.candidate.id for t in trials}) == 61
    assert max(max(t.proposal.parents, default=0) for t in trials) > 8, "later rounds build on earlier ones"


def test_same_halves_same_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        by_turns(tmp_path / name, budget=30)
    assert facts(tmp_path / "a") == facts(tmp_path / "b")


def test_the_first_candidates_are_made_from_the_seed_before_it_is_evaluated(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        outcome = propose(store, 5)
        pending = store.pending()
        assert (outcome.reason, outcome.proposed, outcome.spent, outcome.best) == ("proposed", 5, 0, None)
        assert pending[0].operator == "seed"
        assert [p.parents for p in pending] == [()] + [(0,)] * 5
        assert store.screen_count() == 0
        assert store.events()[-1][:2] == ("ended", "proposed")


def test_proposing_stops_at_the_budget_pending_candidates_included(tmp_path: Path) -> None:
    with create(tmp_path, budget=7) as store:
        assert propose(store, 5).proposed == 5
    with resume(tmp_path) as store:
        outcome = propose(store, 5)
        assert (outcome.reason, outcome.proposed) == ("all of the budget is proposed", 2)
        assert propose(store, None).proposed == 0
        assert evaluate(store).reason == "budget spent"
        assert propose(store, 5).reason == "budget spent"


def test_evaluating_proposes_nothing(tmp_path: Path) -> None:
    evaluator = SlowEvaluator()
    with create(tmp_path) as store:
        propose(store, 5)
        outcome = evaluate(store, evaluator)
        assert (outcome.reason, outcome.spent, outcome.proposed) == ("nothing is pending", 5, 0)
        assert len(evaluator.evaluated) == 5, "the seed was evaluated by prepare()"
        assert evaluator.screened == []


def test_a_space_that_is_exhausted_before_anything_is_evaluated(tmp_path: Path) -> None:
    """`mix` needs two parents, and the seed is all there is."""
    with create(tmp_path, operators=("mix",)) as store:
        assert propose(store, 5).reason == "nothing new can be made of what is known"


def test_a_run_in_halves_goes_on_as_a_whole(tmp_path: Path) -> None:
    with create(tmp_path, budget=30) as store:
        propose(store, 5)
    with resume(tmp_path) as store:
        assert search(store).reason == "budget spent"
        assert store.pending() == []


# --- with models -----------------------------------------------------------------------------------------------------


def with_models(folder: Path, endpoint: Endpoint, **changes: object) -> Store:
    model = Model("m", endpoint.url, max_tokens=100)
    return create(folder, operators=("mutate", "change@m", "mend@m"), models=(model,), **changes)


def propose_with_models(store: Store, count: int) -> EngineOutcome:
    llm = llm_of(store)
    return Engine(store, None, SEED_SOURCE, None, score, OPERATORS, proposals=count, llm=llm).run()


@pytest.mark.parametrize("changes", [{"workers": 1, "llm_slots": 1}, {"workers": 2, "llm_slots": 3}])
def test_models_and_rules_share_what_is_proposed(tmp_path: Path, changes: dict[str, int]) -> None:
    with Endpoint() as endpoint, with_models(tmp_path, endpoint, budget=60, **changes) as store:
        assert propose_with_models(store, 30).proposed == 30
        operators = Counter(p.operator for p in store.pending())
    assert operators["change@m"] >= 5
    assert operators["mutate"] >= 5


def test_a_single_path_proposes_nothing_beyond_what_is_not_evaluated(tmp_path: Path) -> None:
    one = {"strategy": "tritonforge", "workers": 1, "llm_slots": 1, "operators": ("change@m", "mend@m")}
    with Endpoint() as endpoint:
        model = Model("m", endpoint.url, max_tokens=100)
        with create(tmp_path, models=(model,), budget=9, **one) as store:
            for pending in (1, 1):
                assert propose_with_models(store, 5).reason == "nothing new can be made of what is known"
                assert len([p for p in store.pending() if p.index]) == pending
            evaluate(store)
            assert propose_with_models(store, 5).proposed == 1


def test_answers_without_a_source_may_come_before_the_seed_is_evaluated(tmp_path: Path) -> None:
    def script(body: object, number: int) -> Reply:
        return Reply(text="no idea") if number % 2 else Reply()

    with Endpoint(script) as endpoint, with_models(tmp_path, endpoint, budget=40) as store:
        for _ in range(20):
            propose_with_models(store, 8)
            if evaluate(store).reason == "budget spent":
                break
        trials = list(store.trials())
    assert sorted(t.index for t in trials) == list(range(41))
    assert {t.evaluation.stage for t in trials} >= {"answer", "done"}
    first = next(t for t in trials if t.evaluation.stage == "answer")
    assert trials.index(first) < [t.index for t in trials].index(0), "nothing was tested"


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CliEvaluator]:
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch.setattr)


def run(*arguments: str) -> int:
    return main(["run", *arguments])


def test_a_folder_that_travels_between_a_login_node_and_a_gpu_node(
    opened: list[CliEvaluator],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The GPU node has another build of torch, and is the only one with a GPU."""
    here, there = Path("login"), Path("node")
    on_node = {"evo": "1", "torch": "2.13.0+cu126"}
    for round_ in range(3):
        monkeypatch.setattr(evaluators, "find_gpus", lambda target: NO_GPU)
        assert run("softmax", "--propose-only", "4", "--budget", "10", "--run-dir", str(here)) == 0
        assert len(opened) == round_, "proposing starts no evaluator"
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(here, there)
        monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=1, name="H200", problem=""))
        monkeypatch.setattr(evo.core.versions, "versions", lambda: on_node)
        assert run("--evaluate-only", "--run-dir", str(there)) == 0
        assert opened[-1].device == "gpu"
        shutil.rmtree(here)
        shutil.copytree(there, here)
    out = capsys.readouterr().out
    assert "ended: proposed; 4 candidates proposed, 5 pending" in out
    assert "evaluate them: evo run --evaluate-only --run-dir login" in out
    assert "ended: nothing is pending, 4 candidates evaluated" in out
    assert "ended: budget spent, 10 candidates evaluated" in out
    with RunReader(here) as reader:
        assert reader.info.versions == on_node
        assert reader.info.environment == {"evaluator": "instant"}
        assert (reader.info.config.device, reader.info.config.screen_budget) == ("gpu", 0)
    assert run("--evaluate-only", "--run-dir", str(here)) == 0
    assert "nothing is pending; propose more" in capsys.readouterr().out
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: NO_GPU)
    assert run("--propose-only", "4", "--budget", "14", "--run-dir", str(here)) == 0
    assert run("--evaluate-only", "--run-dir", str(here)) == 2
    assert "measured on a GPU, but torch sees no CUDA GPU" in capsys.readouterr().err


def test_the_first_to_evaluate_decides_and_resume_may_be_the_first(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("softmax", "--propose-only", "2", "--budget", "6", "--run-dir", "out") == 0
    assert main(["resume", "out"]) == 0
    with RunReader(Path("out")) as reader:
        assert reader.info.environment == {"evaluator": "instant"}
        assert len(list(reader.trials())) == 7
    assert run("--propose-only", "2", "--budget", "8", "--run-dir", "out") == 0
    capsys.readouterr()
    assert run("--evaluate-only", "--gpus", "1", "--run-dir", "out") == 2
    assert "--gpus 1: this run is estimated, and keeps to it; leave it out" in capsys.readouterr().err


def test_prompts_of_a_run_say_one_machine(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those before the first evaluation could not know which one will measure; those after it do not say another."""
    monkeypatch.setattr(CliEvaluator, "environment", {"evaluator": "instant", GPU_FACTS: "{}"})
    assert run("softmax", "--propose-only", "2", "--budget", "6", "--run-dir", "halves") == 0
    assert run("--evaluate-only", "--run-dir", "halves") == 0
    with RunReader(Path("halves")) as reader:
        assert reader.info.environment == {"evaluator": "instant"}
    assert run("softmax", "--budget", "2", "--run-dir", "whole") == 0
    with RunReader(Path("whole")) as reader:
        assert reader.info.environment[GPU_FACTS] == "{}"


def test_what_is_given_to_the_proposing_half_is_kept_for_the_other(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=1, name="H200", problem=""))
    for name, options, expected in (
        ("cpu", ("--gpus", "none", "--screen-budget", "3"), ("cpu", "none", 3)),
        ("gpu", ("--screen-budget", "6"), ("gpu", None, 6)),
        ("plain", (), ("gpu", None, 0)),
    ):
        assert run("softmax", "--propose-only", "2", "--budget", "6", "--run-dir", name, *options) == 0
        assert run("--evaluate-only", "--run-dir", name) == 0
        assert main(["resume", name]) == 0
        with RunReader(Path(name)) as reader:
            config = reader.info.config
            assert (config.device, config.gpus, config.screen_budget) == expected
            assert len(list(reader.trials())) == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpus", "foo"), "--gpus: expected a number from 1, all or none, got 'foo'"),
        (("--ray-address", "bar"), "--ray-address bar: expected HOST:PORT of a Ray cluster, auto or local"),
        (("--screen-budget", "-3"), "screen_budget: expected an integer from 0"),
    ],
)
def test_options_of_a_half_are_checked_before_anything_is_stored(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], options: tuple[str, str], words: str
) -> None:
    assert run("softmax", "--propose-only", "2", "--run-dir", "out", *options) == 2
    assert words in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize("pending", [1, 0])
def test_an_evaluating_half_that_is_refused_changes_nothing(opened: list[CliEvaluator], pending: int) -> None:
    assert run("softmax", "--propose-only", "1", "--budget", "6", "--run-dir", "out") == 0
    assert run("--evaluate-only", "--run-dir", "out") == 0
    if pending:
        assert run("--propose-only", "1", "--run-dir", "out") == 0
    with RunReader(Path("out")) as reader:
        before = reader.info, reader.events()
    assert run("--evaluate-only", "--run-dir", "out", "--budget", "9", "--gpus", "1") == 2
    assert run("--propose-only", "1", "--run-dir", "out", "--budget", "9", "--screen-budget", "2") == 2
    with RunReader(Path("out")) as reader:
        assert (reader.info, reader.events()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--propose-only", "2"], "expected the folder of the run, got none; add --run-dir DIR"),
        (["--evaluate-only"], "expected the folder of the run, got none"),
        (["--propose-only", "0", "--run-dir", "out"], "expected a number from 1, got 0"),
        (["--evaluate-only", "--run-dir", "empty"], "expected a run in empty"),
        (["--propose-only", "2", "--strategy", "random", "--run-dir", "out"], "was started with evolve, got random"),
        (["--evaluate-only", "--seed", "7", "--run-dir", "out"], "--seed: the run in out was started with 0, got 7"),
    ],
)
def test_misuse(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run("softmax", "--propose-only", "1", "--run-dir", "out") == 0
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err
    assert opened == []


@pytest.mark.parametrize(
    ("started", "given", "words"),
    [
        (["--seed", "5"], ["--seed", "0"], "--seed: the run in out was started with 5, got 0; leave it out"),
        (["--strategy", "random"], ["--strategy", "evolve"], "was started with random, got evolve"),
        (["--target", "h100"], ["--target", "sm_90"], "--target: the run in out was started with h100, got sm_90"),
        ([], ["--operators", "mix,nudge"], "was started with mutate,nudge,mix,screening, got mix,nudge;"),
        ([], ["--full"], "--full: the run in out was started with first looks, got no first looks"),
        ([], ["--llm-concurrency", "3"], "--llm-concurrency: the run in out was started with 1, got 3"),
        ([], ["--max-tokens", "9"], "--max-tokens: the run in out was started with none, got 9"),
    ],
)
def test_settings_that_are_not_those_of_the_run_are_refused_defaults_too(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], started: list[str], given: list[str], words: str
) -> None:
    assert run("softmax", "--propose-only", "1", "--run-dir", "out", *started) == 0
    for half in (["--propose-only", "1"], ["--evaluate-only"]):
        assert run(*half, "--run-dir", "out", *given) == 2
        assert words in capsys.readouterr().err
    assert run("--propose-only", "1", "--run-dir", "out", *started) == 0


def test_the_default_budget_that_is_given_is_the_budget(opened: list[CliEvaluator]) -> None:
    for half, given, budget in (
        (["--propose-only", "1"], ["--budget", "64"], 64),
        (["--propose-only", "1"], [], 64),
        (["--evaluate-only"], ["--budget", "32"], 32),
    ):
        assert run(*half, "--run-dir", "out", *given) == 0
        with RunReader(Path("out")) as reader:
            assert reader.info.config.budget == budget


def test_both_halves_at_once_are_refused(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run("--propose-only", "2", "--evaluate-only", "--run-dir", "out")
    assert left.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_tasks_and_versions_that_do_not_fit(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    assert run("mine", "--propose-only", "1", "--run-dir", "out") == 0
    (tmp_path / "mine").rename(tmp_path / "elsewhere")
    assert run("--propose-only", "1", "--run-dir", "out") == 2
    assert "which is not on this machine; name its folder as TASK" in capsys.readouterr().err
    assert run("elsewhere", "--propose-only", "1", "--run-dir", "out") == 0
    other = dataclasses.replace(load("softmax"), hash="other")
    with monkeypatch.context() as patch:
        patch.setattr(api, "load_task", lambda name, **_: other)
        assert run("softmax", "--evaluate-only", "--run-dir", "out") == 2
    assert "softmax is another task or was changed since" in capsys.readouterr().err
    monkeypatch.setattr(evo.core.versions, "own_versions", lambda: {"evo": "2"})
    assert run("elsewhere", "--evaluate-only", "--run-dir", "out") == 2
    assert "it was started with evo 1, here is evo 2" in capsys.readouterr().err


def test_kill_9_while_evaluating_loses_and_repeats_nothing_finished(
    opened: list[CliEvaluator], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("softmax", "--propose-only", "30", "--workers", "1", "--run-dir", "out") == 0
    process = evo_process("run", "--evaluate-only", "--run-dir", "out", "--workers", "1", sleep_s=0.2, cwd=tmp_path)
    while not LOG.exists() or len(LOG.read_text().splitlines()) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    # Held by the process above: neither half may write meanwhile.
    assert run("--propose-only", "1", "--run-dir", "out") == 2
    assert f"process {process.pid} is running" in capsys.readouterr().err
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with RunReader(Path("out")) as reader:
        done = {trial.proposal.candidate.id for trial in reader.trials()}
        assert 0 < len(done) < 31
    assert run("--evaluate-only", "--run-dir", "out", "--workers", "1") == 0
    assert not done & set(opened[-1].evaluated)
    with RunReader(Path("out")) as reader:
        assert reader.pending() == []
        assert len(list(reader.trials())) == 31


def test_prompts_before_the_first_evaluation_say_what_the_compiler_and_the_model_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run by halves with the real compiler and evaluator; its decisions are made again afterwards."""
    run_dir = tmp_path / "run"
    with Endpoint() as endpoint:  # its answers hold no kernel of this task
        settings = {"models": [f"m@{endpoint.url}"], "operators": ["mutate"], "budget": 2, "seed": 1}
        assert api.propose(run_dir, 1, "vector_sin", **settings).proposed == 1
        api.evaluate_pending(run_dir, gpus="none", workers=1)
        assert api.propose(run_dir, 1, "vector_sin", **settings).proposed == 1
    with RunReader(run_dir) as run:
        estimate = run.seed_estimate()
        before, after = ([m.text for m in c.call.question.prompt.messages] for c in stored_calls(run))
        seed = run.trial(0)
    assert estimate is not None
    assert [b.sass_hash for b in estimate.builds] == [b.sass_hash for b in seed.evaluation.builds]
    assert [t.samples_us for t in estimate.timings] == [t.samples_us for t in seed.evaluation.timings]
    assert "the version is not known before the first evaluation" in before[0]
    assert "Estimated by a model of the GPU (nothing was measured)" in before[1] and "registers a thread" in before[1]
    assert f"# Triton {triton.__version__}" in after[0]
    assert "Nothing was measured yet" not in before[1] + after[1]
    capsys.readouterr()
    assert main(["replay", str(run_dir)]) == 0, capsys.readouterr().out

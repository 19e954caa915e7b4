"""evo.llm.models and the options of `evo run` that concern models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.benchmarks.endpoint import Ask, Endpoint, Reply, context
from evo.core.errors import ConfigError
from evo.core.models import Model
from evo.core.settings import GUIDANCE
from evo.llm.models import read_models
from evo.search import assemble
from evo.storage.queries import RunReader
from tests.cli_support import CliEvaluator, install
from tests.engine_support import config
from tests.llm_endpoint import KEY, error, in_turn
from tests.test_cli import run

URL = "https://x.example/v1"
TOML = """
[models."gpt-think"]
endpoint = "https://x.example/v1"
usd_in = 1.25
usd_out = 10
reasoning_effort = "high"
[models.local]
sent_as = "Qwen/Qwen3-Coder"
answer = "edits"
"""


def test_a_model_is_a_name_and_an_endpoint(tmp_path: Path) -> None:
    (one, two) = read_models([f"qwen3:32b@{URL}", f"box@mailbox:{tmp_path}"], None)
    assert (one.name, one.provider, one.path) == ("box", "mailbox", tmp_path)
    assert two == Model("qwen3:32b", URL)
    assert two.key_variable == "EVO_API_KEY_QWEN3_32B"
    assert read_models([f"mailbox:{tmp_path}"], None)[0].name == "mailbox"


def test_a_file_holds_prices_and_settings(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(TOML, encoding="utf-8")
    think, local = read_models(["local@http://localhost:8000/v1", "gpt-think"], tmp_path / "models.toml")
    assert (think.endpoint, think.reasoning_effort, think.usd(1_000_000, 2_000_000)) == (URL, "high", 21.25)
    assert (local.sent_as, local.answer, local.usd(1, 1)) == ("Qwen/Qwen3-Coder", "edits", None)


@pytest.mark.parametrize(
    ("spec", "toml", "words"),
    [
        ("gpt", None, "expected NAME@BASE_URL, NAME@mailbox:DIR or NAME@replay:PATH, got 'gpt'"),
        ("gpt", TOML, "tables in the file: gpt-think, local; add the endpoint"),
        ("m@ftp://x", None, "got endpoint 'ftp://x'"),
        ("m@mailbox:", None, "got endpoint 'mailbox:'"),
        (f"a b@{URL}", None, "expected a name without spaces"),
        (f"m@https://user:{KEY}@x.example/v1", None, "put the key into the environment variable EVO_API_KEY_M"),
        (f"m@https://x.example/v1?key={KEY}", None, "put the key into the environment variable EVO_API_KEY_M"),
        (f"m@{URL}", '[models.m]\ncolour = "red"', "expected settings among endpoint, sent_as"),
        (f"m@{URL}", "[models.m]\nmax_tokens = 0", "max_tokens: expected an integer from 1, got 0"),
        (f"m@{URL}", "[models.m]\ntimeout_s = 0", "timeout_s: expected a number above 0, got 0"),
        (f"m@{URL}", "[models.m]\nstream = 1", "stream: expected true or false, got 1"),
        (f"m@{URL}", "[models.m]\nusd_in = 1", "expected both usd_in and usd_out"),
        (f"m@{URL}", "[models.m]\nanswer = 'diff'", "answer: expected rewrite or edits, got 'diff'"),
        (f"m@{URL}", "models = 1", "expected tables"),
        (f"m@{URL}", "[models", "expected a TOML file"),
        ("replay:nowhere", None, "expected a run's folder or a file of `evo calls` at"),
    ],
)
def test_what_is_no_model_is_refused_in_words(tmp_path: Path, spec: str, toml: str | None, words: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(toml or "", encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        read_models([spec], file if toml else None)
    assert words in str(raised.value)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("endpoint = 3", "model m: endpoint: expected a text, got 3"),
        ("sent_as = 3", "model m: sent_as: expected a text, got 3"),
        ("reasoning_effort = 4", "model m: reasoning_effort: expected a text, got 4"),
    ],
)
def test_settings_of_another_type_are_refused(tmp_path: Path, setting: str, words: str) -> None:
    file = tmp_path / "models.toml"
    endpoint = "" if "endpoint" in setting else f'endpoint = "{URL}"\n'
    file.write_text(f"[models.m]\n{endpoint}{setting}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        read_models(["m"], file)


def test_a_file_without_a_model_to_ask_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(f'[models.m]\nendpoint = "{URL}"', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"models\.toml: expected --model NAME to ask a model of this file, got none"):
        read_models([], tmp_path / "models.toml")
    assert read_models([], None) == ()


def test_a_name_is_given_once() -> None:
    with pytest.raises(ConfigError, match="got m twice"):
        read_models([f"m@{URL}", f"m@{URL}/other"], None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_usd": 1.0}, "--max-usd: expected a price for each model, got none for m"),
        ({"max_tokens": 0}, "--max-tokens: expected a number above 0, got 0"),
        ({"guidance": "all"}, "--guidance: expected one of digest, raw, none, got 'all'"),
        ({"llm_slots": 0}, "--llm-concurrency: expected an integer from 1 to 1024, got 0"),
        ({"operators": ("mutate@other",)}, "expected models among m, got other"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(**{"models": (Model("m", URL),), **changes})
    assert words in str(raised.value)


def test_a_config_with_models_survives_its_json() -> None:
    made = config(models=(Model("m", URL, usd_in=1.0, usd_out=2.0),), operators=("mutate@m",), max_usd=3.0)
    assert type(made).from_json(made.to_json()) == made


# --- command line ----------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CliEvaluator]:
    import operators.registry
    from evo.llm import queue

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(operators.registry, "DEFAULT_LLM_OPERATORS", ("change", "mend"))
    monkeypatch.setattr(assemble, "prompt_context", lambda info, task: context)
    monkeypatch.setattr(queue, "BACKOFF_S", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made = install(monkeypatch.setattr)
    monkeypatch.setattr(operators.registry, "LLM_OPERATORS", {o.name: o for o in (Ask(), Ask("mend", repairs=True))})
    return made


@pytest.fixture
def endpoint() -> Any:
    with Endpoint() as made:
        yield made


def test_a_run_with_a_model(opened: Any, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    Path("models.toml").write_text("[models.m]\nusd_in = 1.0\nusd_out = 2.0\n", encoding="utf-8")
    run_ = ("run", "task", "--run-dir", "r", "--model", f"m@{endpoint.url}", "--models", "models.toml")
    assert run(*run_, "--operators", "change,mend", "--budget", "10", "--workers", "1", "--max-usd", "0.5") == 0
    out = capsys.readouterr().out
    assert f"model m: {endpoint.url}; $1 and $2 a million tokens in and out" in out
    assert "limits: $0.5" in out
    with RunReader(Path("r")) as found:
        assert found.info.config.operators == ("change@m", "mend@m")
        assert {c.name for c in found.operators()} - {"seed"} <= {"change@m", "mend@m"}
    assert endpoint.keys[0] == f"Bearer {KEY}"
    assert run("show", "r") == 0
    shown = capsys.readouterr().out
    assert "models" in shown and "change@m" in shown
    assert run("show", "r", "1") == 0
    shown = capsys.readouterr().out
    assert "call 1 of m" in shown and "Better ones: GENES=" in shown
    assert KEY.encode() not in b"".join(p.read_bytes() for p in Path("r").rglob("*") if p.is_file())


def test_a_run_is_replayed_from_its_calls(opened: Any, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--budget", "12", "--workers", "1")
    assert run("run", "task", "--run-dir", "a", "--model", f"m@{endpoint.url}", *common) == 0
    capsys.readouterr()
    assert run("calls", "a") == 0
    Path("calls.jsonl").write_text(capsys.readouterr().out, encoding="utf-8")
    assert run("run", "task", "--run-dir", "b", "--model", "replay:calls.jsonl", *common) == 0
    with RunReader(Path("a")) as one, RunReader(Path("b")) as two:
        sources = [[t.proposal.candidate.source for t in found.trials()] for found in (one, two)]
        assert [t.proposal.operator for t in one.trials()] == [t.proposal.operator for t in two.trials()]
    assert sources[0] == sources[1]
    assert run("run", "task", "--run-dir", "c", "--model", "replay:a", *common, "--seed", "7") == 2
    assert "expected an answer of m to prompt" in capsys.readouterr().err


def test_a_run_without_models_has_no_calls(opened: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "task", "--run-dir", "r", "--budget", "2", "--workers", "1") == 0
    capsys.readouterr()
    assert run("calls", "r") == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no language model answered in r; see evo run --model\n")


def test_proposals_of_a_model_are_evaluated_elsewhere(
    opened: Any, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ("--run-dir", "r")
    monkeypatch.setattr(assemble, "estimate_seed", lambda *_: None)  # this task has no kernel that compiles
    assert (
        run("run", "task", *folder, "--model", f"m@{endpoint.url}", "--operators", "change", "--propose-only", "6") == 0
    )
    assert len(endpoint.requests) == 6
    monkeypatch.setattr(assemble, "open_llm", None)  # not even looked at
    assert run("run", "task", *folder, "--evaluate-only") == 0
    with RunReader(Path("r")) as found:
        assert len(list(found.trials())) == 7


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (["n@{0}"], "was started with m@{0}, got n@{0}; leave it out"),
        (["m@{0}/other"], "was started with m@{0}, got m@{0}/other; leave it out"),
        (["m@{0}", "n@{0}"], "was started with m@{0}, got m@{0}, n@{0}; leave it out"),
        (["m"], "was started with m@{0} attempts=6 stream=False, got m@{0} attempts=2 stream=True; leave it out"),
    ],
)
def test_other_models_than_those_of_the_run_are_refused_in_words(
    opened: Any,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    models: list[str],
    words: str,
) -> None:
    monkeypatch.setattr(assemble, "estimate_seed", lambda *_: None)  # this task has no kernel that compiles
    half = ("run", "task", "--run-dir", "r", "--propose-only", "1")
    assert run(*half, "--model", f"m@{endpoint.url}") == 0
    table = f'[models.m]\nendpoint = "{endpoint.url}"\nattempts = 2\nstream = true\n'
    Path("models.toml").write_text(table, encoding="utf-8")
    given = [word for model in models for word in ("--model", model.format(endpoint.url))]
    file = [] if "@" in models[0] else ["--models", "models.toml"]
    capsys.readouterr()
    assert run(*half, *given, *file) == 2
    assert f"--model: the run in r {words.format(endpoint.url)}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--operators", "mix@m"], "expected NAME@MODEL with a name among change, mend, got mix@m"),
        (["--operators", "mix"], "expected an operator that asks it, got mix"),
        (["--operators", "change@other"], "expected models among m, got other"),
        (["--max-usd", "1"], "expected a price for each model, got none for m"),
        (["--model", "m@https://y.example/v1"], "expected each name once, got m twice"),
    ],
)
def test_misuse(opened: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert run("run", "task", "--model", f"m@{URL}", *arguments) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()


def test_guidance_needs_a_model_and_the_one_unasked_does_not(opened: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for guidance in GUIDANCE:
        for command in (("run", "task"), ("run", "--propose-only", "1", "--run-dir", "new")):
            assert run(*command, "--guidance", guidance) == 2
            assert "--guidance: expected a model whose prompts have profiles, got none" in capsys.readouterr().err
    assert not Path("runs").exists() and not Path("new").exists()
    assert run("run", "task", "--budget", "2", "--run-dir", "r") == 0
    with RunReader(Path("r")) as reader:
        assert reader.info.config.guidance == "digest"


@pytest.mark.parametrize("limit", [("--max-tokens", "100"), ("--max-usd", "1")])
def test_limits_need_a_model(opened: Any, capsys: pytest.CaptureFixture[str], limit: tuple[str, str]) -> None:
    words = f"{limit[0]}: expected a model whose answers it limits, got none; "
    fixes = {"run": "add --model, or leave it out", "resume": "leave it out, or start another run with one"}
    assert run("run", "task", "--budget", "2", "--run-dir", "r") == 0
    for command in (("run", "task"), ("run", "--propose-only", "1", "--run-dir", "new"), ("resume", "r")):
        capsys.readouterr()
        assert run(*command, *limit) == 2
        assert words + fixes[command[0]] in capsys.readouterr().err
    assert not Path("runs").exists() and not Path("new").exists()


def test_mailboxes_are_said_to_be_charged_nothing() -> None:
    box, paid = Model("me", "mailbox:/box"), Model("m", URL)
    for models, limits, said in (
        ((box,), {"max_tokens": 5}, "limits: 5 tokens; answers of mailboxes are charged nothing"),
        ((box,), {}, "limits: none (--max-tokens, --max-usd)"),
        ((paid,), {"max_tokens": 5}, "limits: 5 tokens"),
    ):
        assert assemble.describe_models(config(models=models, **limits))[-1] == said


def test_operators_that_ask_need_a_model(opened: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "task", "--operators", "change") == 2
    assert "expected a model for operator change, got none; give --model" in capsys.readouterr().err


def test_a_limit_can_be_raised_on_resume(opened: Any, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.script = in_turn(Reply(tokens=(100, 5000)))
    run_ = ("run", "task", "--run-dir", "r", "--model", f"m@{endpoint.url}", "--operators", "change")
    assert run(*run_, "--budget", "5", "--workers", "1", "--max-tokens", "20000") == 0
    out = capsys.readouterr().out
    assert "limit on tokens or dollars reached" in out
    assert "price unknown: tokens are counted, dollars are not" in out
    assert run("resume", "r", "--max-tokens", "1000000") == 0
    assert "ended: budget spent, 5 candidates" in capsys.readouterr().out


def test_a_model_may_move(opened: Any, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    with Endpoint(in_turn(error(500, "going away"))) as old:
        Path("models.toml").write_text("[models.m]\nattempts = 1\n", encoding="utf-8")
        run_ = ("run", "task", "--run-dir", "r", "--operators", "change", "--workers", "1", "--budget", "3")
        assert run(*run_, "--model", f"m@{old.url}", "--models", "models.toml") == 1
        tried = capsys.readouterr().out
        told, ended, first = (
            tried.index(text)
            for text in (
                "model m gave no answer, and is asked again: ",
                "ended: no model answers, 0 candidates evaluated",
                "first failure of model m: ",
            )
        )
        assert told < ended < first and f"check it by `evo doctor --model m@{old.url}`" in tried
        assert tried.count("gave no answer") == tried.count("first failure") == 1
        assert "going away" in tried[told:ended] and "going away" in tried[first:]
    assert run("show", "r") == 0
    assert "first failure of m: " in capsys.readouterr().out
    assert run("resume", "r", "--model", "other@https://x.example/v1") == 2
    assert "expected models of the run (m), got other" in capsys.readouterr().err
    assert run("resume", "r", "--model", f"m@{endpoint.url}") == 0
    assert "ended: budget spent, 3 candidates" in capsys.readouterr().out
    with RunReader(Path("r")) as found:
        assert found.info.config.models == (Model("m", endpoint.url, attempts=1),)


def test_a_refused_key_is_misuse(opened: Any, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.script = in_turn(error(401, f"bad key {KEY}"))
    assert run("run", "task", "--run-dir", "r", "--model", f"m@{endpoint.url}", "--operators", "change") == 2
    said = capsys.readouterr()
    assert "refuses: Error code: 401 - bad key [key]" in said.err
    assert KEY not in said.err + said.out


def test_calls_are_printed_one_a_line(opened: Any, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.script = in_turn(Reply(text="GENES=(1, 2, 3)\nsecond line"))
    run("run", "task", "--run-dir", "r", "--model", f"m@{endpoint.url}", "--operators", "change", "--budget", "2")
    capsys.readouterr()
    assert run("calls", "r") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["answer"] for row in rows] == ["GENES=(1, 2, 3)\nsecond line"] * 2

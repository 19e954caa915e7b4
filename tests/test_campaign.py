"""evo.campaign.spec: specs, arms, what is frozen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from evo.campaign.spec import FILE, Campaign, Cell, Spec, read_plan, read_spec
from evo.campaign.variants import ARMS
from evo.core.errors import ConfigError, StoreError

SPEC = """
tasks = ["softmax", "layer_norm"]
seeds = 2
arms = ["full", "no-islands", "greedy"]
[budget]
trials = 8
[run]
islands = 4
[arm.greedy]
strategy = "hillclimb"
screen_budget = 3
"""
HASHES = {"softmax": "aa", "layer_norm": "bb"}
VERSIONS = {"evo": "1", "code": "c0ffee"}


def spec_of(folder: Path, text: str = SPEC) -> Spec:
    (folder / "spec.toml").write_text(text)
    return read_spec(folder / "spec.toml")


def test_a_spec_becomes_configurations(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    full, greedy = (spec.config("softmax", arm, 1, "cpu") for arm in ("full", "greedy"))
    assert (full.task, full.seed, full.budget, full.islands, full.workers) == ("softmax", 1, 8, 4, 1)
    assert (full.strategy, full.operators) == ("evolve", ("params", "rewrite", "recombine"))
    assert (greedy.strategy, greedy.operators, greedy.screen_budget) == ("hillclimb", ("params", "rewrite"), 3)


def test_ready_arms_take_one_part_away(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    full, *_ = (config := {arm: spec.config("softmax", arm, 0, "gpu") for arm in ARMS}).values()
    changed = {arm: {k for k, v in vars(full).items() if vars(c)[k] != v} for arm, c in config.items() if arm != "full"}
    assert changed == {
        "no-crossover": {"operators"},
        "no-islands": {"islands", "population"},
        "no-archive": {"archive_share"},
        "no-memetic": {"screen_budget"},
        "no-surrogate": {"surrogate"},
        "hillclimb": {"strategy", "operators"},
        "random": {"strategy", "operators"},
    }
    assert config["no-crossover"].operators == ("params", "rewrite")
    assert (config["no-islands"].islands, config["no-islands"].population) == (1, 64)
    assert config["no-archive"].archive_share == config["no-memetic"].screen_budget == 0


def test_without_a_gpu_there_is_no_surrogate(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert spec.config("softmax", "full", 0, "gpu").surrogate
    assert spec.config("softmax", "full", 0, "cpu") == spec.config("softmax", "no-surrogate", 0, "cpu")


def test_cells_of_a_seed_come_together(tmp_path: Path) -> None:
    campaign = Campaign.open(tmp_path / "out", spec_of(tmp_path), "cpu", HASHES, VERSIONS)
    cells = list(campaign.cells())
    assert len(cells) == 2 * 2 * 3
    assert cells[:4] == [
        Cell("softmax", "full", 0), Cell("softmax", "no-islands", 0), Cell("softmax", "greedy", 0),
        Cell("softmax", "full", 1),
    ]  # fmt: skip
    assert cells[3].path == Path("cells/softmax/full/seed-1")
    assert campaign.config(cells[-1]).task == "layer_norm"


def test_a_campaign_goes_on_only_as_it_was_started(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    Campaign.open(tmp_path / "out", spec, "cpu", HASHES, VERSIONS)
    frozen = json.loads((tmp_path / "out" / FILE).read_text())
    assert len(frozen["hash"]) == 16 and frozen["arms"]["greedy"]["screen_budget"] == 3
    Campaign.open(tmp_path / "out", spec_of(tmp_path, "# a remark\n" + SPEC), "cpu", HASHES, VERSIONS)
    others = (
        (spec_of(tmp_path, SPEC.replace("trials = 8", "trials = 9")), "cpu", HASHES, VERSIONS, "arms, budget"),
        (spec, "gpu", HASHES, VERSIONS, "device"),
        (spec, "cpu", {**HASHES, "softmax": "cc"}, VERSIONS, "tasks"),
        (spec, "cpu", HASHES, {**VERSIONS, "code": "other"}, "versions"),
    )
    for other, device, hashes, versions, words in others:
        with pytest.raises(StoreError, match=words):
            Campaign.open(tmp_path / "out", other, device, hashes, versions)
    assert json.loads((tmp_path / "out" / FILE).read_text()) == frozen


def test_arms_that_are_the_same_search_are_refused(tmp_path: Path) -> None:
    text = SPEC.replace('"no-islands", "greedy"', '"no-memetic"')
    Campaign.open(tmp_path / "distinct", spec_of(tmp_path, text), "gpu", HASHES, VERSIONS)
    same = spec_of(tmp_path, text.replace("islands = 4", "screen_budget = 0"))
    for device in ("cpu", "gpu"):
        with pytest.raises(ConfigError, match="full and no-memetic come to the same settings"):
            Campaign.open(tmp_path / device, same, device, HASHES, VERSIONS)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seeds = 2", "seeds = 0", "seeds: expected how many, from 1 to 10000, .* got 0"),
        (
            "trials = 8",
            "trials = true",
            "budget.trials: expected an integer from 1 to 10000000, got True; e.g. trials = 24",
        ),
        ("seeds = 2", "seeds = [1, 1]", "seeds: expected how many"),
        ("seeds = 2", "seeds = 100000000000", "seeds: expected how many, from 1 to 10000, .* got 100000000000"),
        ("seeds = 2", "seeds = [-1]", r"different integers from 0 to 9223372036854775807, got \[-1\]"),
        ("seeds = 2", "seeds = [9223372036854775808]", r"got \[9223372036854775808\]"),
        ("seeds = 2", f"seeds = {list(range(10_001))}", "got a list of 10001; e.g. seeds = 5"),
        ("seeds = 2", "seeds = true", "seeds: expected how many, .* got True"),
        ("[arm.greedy]", '[arm."../greedy"]', "arm.../greedy: expected a name of at most 100 letters"),
        ("[arm.greedy]", '[arm."/tmp/greedy"]', "neither '.' nor '..', got '/tmp/greedy'; choose another"),
        ("[arm.greedy]", '[arm.".."]', "got '..'"),
        ("[arm.greedy]", '[arm."."]', "got '.'"),
        ("[arm.greedy]", '[arm.""]', "got ''"),
        ("seeds = 2", "sedes = 2", "expected keys among .* got sedes"),
        ("trials = 8", "trials = 8\ntokens = 7", "budget: expected models where tokens are limited"),
        ('"greedy"]', '"gready"]', "expected names among full, .*greedy, got gready"),
        ("trials = 8", "tokens = 7", "budget: expected a table with `trials`"),
        ("trials = 8", "trials = 8\nusd = 7", "budget: expected keys among trials, tokens, gpu_seconds, got usd"),
        ('"greedy"]', '"no-repair"]', "arms: expected a model for no-repair, got none"),
        ('"greedy"]', '"full"]', "arms: expected each name once"),
        ("[arm.greedy]", "[arm.random]", "arm.random: expected a new name"),
        ("screen_budget = 3", "screening = 3", "arm.greedy: expected keys among .* got screening"),
        ("islands = 4", "budget = 4", "run: expected keys among .* got budget"),
        ('["softmax", "layer_norm"]', '"softmax"', "tasks: expected a list of names"),
        ("seeds = 2", "seeds = ", "expected a campaign as TOML"),
        (
            "islands = 4",
            "islands = 0",
            "^run.islands: expected an integer from 1 to 64, got 0; set another in the spec",
        ),
        ("screen_budget = 3", "screen_budget = -3", "^arm.greedy.screen_budget: expected an integer from 0 to 10000"),
        ("islands = 4", "guidance = 'all'", "^run.guidance: expected one of digest, raw, none, got 'all'"),
        ("islands = 4", "strategy = 'best-of-n'", "^run.strategy: expected a model for best-of-n .* add models = "),
        (SPEC[SPEC.index("[arm") :], "", "arms: expected names among"),
        (SPEC[SPEC.index("[budget]") :], "arm = 5", r"arm: expected tables \[arm.NAME\], got 5"),
        ("seeds = 2", "seeds = 2\ntarget = [1]", r"target: expected a text, got \[1\]"),
        (
            "seeds = 2",
            'seeds = 2\nmodels = ["m@http://localhost/v1"]\nmodels_file = 5',
            "models_file: expected the path",
        ),
        ("trials = 8", "trials = 8\ngpu_seconds = true", "budget.gpu_seconds: expected a number above 0, got True"),
        ("islands = 4", "surrogate = 3", "run.surrogate: expected true or false, got 3"),
        ("islands = 4", 'frozen_parents = "q"', "run.frozen_parents: expected true or false, got 'q'"),
        ("islands = 4", "archive_share = true", "run.archive_share: expected a number, got True"),
        ("islands = 4", "islands = 4.5", "run.islands: expected an integer, got 4.5"),
        ("islands = 4", 'operators = "mutate"', "run.operators: expected a list of names, got 'mutate'"),
        ('strategy = "hillclimb"', 'strategy = ["a"]', r"arm.greedy.strategy: expected a text, got \['a'\]"),
        ("screen_budget = 3", "operators = [5]", r"arm.greedy.operators: expected a list of names, got \[5\]"),
        ("screen_budget = 3", "guidance = 5", "arm.greedy.guidance: expected a text, got 5"),
    ],
)
def test_specs_with_a_slip_are_refused_in_words(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in SPEC
    with pytest.raises(ConfigError, match=words):
        spec_of(tmp_path, SPEC.replace(old, new))


def test_task_folders_may_be_beside_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    for name in ("theirs", "mine", "softmax"):
        (tmp_path / "specs" / name).mkdir(parents=True)
        (tmp_path / "specs" / name / "task.py").write_text("")
    spec = spec_of(tmp_path / "specs", SPEC.replace('"layer_norm"]', '"mine", "theirs", "nowhere"]'))
    assert spec.tasks == ("softmax", "mine", str(tmp_path / "specs/theirs"), "nowhere")


def test_settings_are_checked_before_anything_runs(tmp_path: Path) -> None:
    for old, new, words in (
        ("trials = 8", "trials = 0", "budget.trials: expected an integer from 1"),
        ("islands = 4", "operators = ['params', 'magic']", "'magic'"),
        ("islands = 4", "operators = 'params'", "operators: expected a list"),
        ("islands = 4", "operators = ['recombine']", "recombine needs two parents"),
        ("islands = 4", "archive_share = 1.5", "archive_share: expected a number from 0 to 1"),
        ("islands = 4", "strategy = 'anneal'", "strategy: expected one of"),
    ):
        with pytest.raises(ConfigError, match=words):
            Campaign.open(tmp_path / "out", spec_of(tmp_path, SPEC.replace(old, new)), "cpu", HASHES, VERSIONS)
    assert not (tmp_path / "out").exists()


def test_cells_of_gpu_seconds_need_a_gpu(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SPEC.replace("trials = 8", "trials = 500\ngpu_seconds = 60"))
    campaign = Campaign.open(tmp_path / "out", spec, "gpu", HASHES, VERSIONS)
    assert {(campaign.config(c).budget, campaign.config(c).gpu_seconds) for c in campaign.cells()} == {(500, 60)}
    assert json.loads((tmp_path / "out" / FILE).read_text())["budget"]["gpu_seconds"] == 60
    with pytest.raises(ConfigError, match="60 GPU seconds: expected a GPU that measures, got estimated times"):
        Campaign.open(tmp_path / "estimated", spec, "cpu", HASHES, VERSIONS)
    assert not (tmp_path / "estimated").exists()
    with pytest.raises(ConfigError, match=r"budget\.gpu_seconds: expected a number above 0, got 0"):
        spec_of(tmp_path, SPEC.replace("trials = 8", "trials = 8\ngpu_seconds = 0"))


MODELS = """
tasks = ["softmax"]
seeds = 1
models = ["m"]
models_file = "models.toml"
arms = [
    "full", "no-llm", "no-profile", "raw-profile", "no-repair", "no-crossover", "best-of-n", "tritonforge", "random"
]
[budget]
trials = 8
tokens = 5000
"""


def test_arms_of_models(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[models.m]\nendpoint = "http://localhost:1/v1"\n')
    spec = spec_of(tmp_path, MODELS)
    arms = {arm: spec.config("softmax", arm, 0, "cpu") for arm in spec.arms}
    full = arms["full"]
    rules = ("params", "rewrite", "recombine")
    assert full.operators == (*rules, "mutate@m", "crossover@m", "repair@m", "explore@m")
    assert ([m.endpoint for m in full.models], full.max_tokens) == (["http://localhost:1/v1"], 5000)
    assert full.serial and full.triton
    changed = {a: {k for k, v in vars(full).items() if vars(c)[k] != v} for a, c in arms.items() if a != "full"}
    assert changed == {
        "no-llm": {"operators", "models", "max_tokens"},
        "no-profile": {"guidance"},
        "raw-profile": {"guidance"},
        "no-repair": {"operators"},
        "no-crossover": {"operators"},
        "best-of-n": {"operators", "strategy"},
        "tritonforge": {"operators", "strategy"},
        "random": {"operators", "models", "max_tokens", "strategy"},
    }
    assert arms["no-llm"].operators == rules
    assert arms["no-repair"].operators == (*rules, "mutate@m", "crossover@m", "explore@m")
    assert arms["no-crossover"].operators == ("params", "rewrite", "mutate@m", "repair@m", "explore@m")
    assert arms["best-of-n"].operators == ("mutate@m",)
    assert arms["tritonforge"].operators == ("mutate@m", "repair@m")
    frozen = Campaign.open(tmp_path / "out", spec, "cpu", {"softmax": "aa"}, VERSIONS)
    assert Campaign.open(tmp_path / "out", spec, "cpu", {"softmax": "aa"}, VERSIONS).cells() == frozen.cells()


def test_a_folder_with_a_run_takes_no_campaign(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "run.sqlite").write_text("")
    with pytest.raises(StoreError, match=r"holds a run \(run.sqlite\); choose another by --out"):
        Campaign.open(folder, spec_of(tmp_path), "cpu", HASHES, VERSIONS)
    assert not (folder / FILE).exists()


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", "7", '{"arms": {"full": 1}}', '{"arms": {}, "tasks": {}, "seeds": "a"}']
)
def test_a_damaged_campaign_is_refused_in_words(tmp_path: Path, text: str) -> None:
    campaign = Campaign.open(tmp_path, spec_of(tmp_path), "cpu", HASHES, VERSIONS)
    (tmp_path / FILE).write_text(text)
    for read in (
        lambda: read_plan(tmp_path),
        lambda: Campaign.open(tmp_path, campaign.spec, "cpu", HASHES, VERSIONS),
        lambda: campaign.add("rotary", "rotary", "cc"),
    ):
        with pytest.raises(StoreError, match=r"campaign.json is damaged: expected .*; restore it from a copy"):
            read()
    assert (tmp_path / FILE).read_text() == text


def test_tasks_may_come_later(tmp_path: Path) -> None:
    spec = dataclasses.replace(spec_of(tmp_path), tasks=())
    campaign = Campaign.open(tmp_path / "out", spec, "cpu", {}, VERSIONS)
    assert campaign.cells() == []
    campaign.add("softmax", "folder/softmax", "aa")
    assert {cell.task for cell in campaign.cells()} == {"softmax"}
    assert campaign.config(campaign.cells_of("softmax")[0]).task == "folder/softmax"
    again = Campaign.open(tmp_path / "out", spec, "cpu", {}, VERSIONS)
    assert len(read_plan(tmp_path / "out").cells) == 6
    with pytest.raises(StoreError, match="task softmax differ"):
        again.add("softmax", "folder/softmax", "bb")
    with pytest.raises(StoreError, match="versions differ"):
        Campaign.open(tmp_path / "out", spec, "cpu", {}, {**VERSIONS, "code": "other"})

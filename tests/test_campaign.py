"""evo.campaign.spec: specs, variants, what is frozen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from evo.campaign.spec import FILE, Campaign, CampaignRun, Spec, check_run, read_plan, read_spec
from evo.campaign.suite import SuiteSelection
from evo.campaign.variants import VARIANTS
from evo.core.errors import ConfigError, StoreError
from evo.storage.queries import RunInfo

SPEC = """
tasks = ["softmax", "layer_norm"]
seeds = 2
variants = ["full", "no-islands", "greedy"]
[budget]
trials = 8
[run]
islands = 4
[variant.greedy]
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
    full, greedy = (spec.config("softmax", variant, 1, "cpu") for variant in ("full", "greedy"))
    assert (full.task, full.seed, full.budget, full.islands, full.workers) == ("softmax", 1, 8, 4, 1)
    assert (full.strategy, full.operators) == ("evolve", ("params", "rewrite", "recombine"))
    assert (greedy.strategy, greedy.operators, greedy.screen_budget) == ("hillclimb", ("params", "rewrite"), 3)


def test_ready_variants_take_one_part_away(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SPEC.replace("islands = 4", "islands = 4\nscreen_budget = 4"))
    full, *_ = (config := {variant: spec.config("softmax", variant, 0, "gpu") for variant in VARIANTS}).values()
    changed = {
        variant: {k for k, v in vars(full).items() if vars(c)[k] != v}
        for variant, c in config.items()
        if variant != "full"
    }
    assert changed == {
        "no-crossover": {"operators"},
        "no-islands": {"islands", "population"},
        "no-archive": {"archive_share"},
        "no-memetic": {"screen_budget"},
        "no-surrogate": {"surrogate"},
        "no-progressive": {"progressive"},
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


def test_runs_of_a_seed_come_together(tmp_path: Path) -> None:
    campaign = Campaign.open(tmp_path / "out", spec_of(tmp_path), "cpu", HASHES, VERSIONS)
    runs = list(campaign.runs())
    assert len(runs) == 2 * 2 * 3
    assert runs[:4] == [
        CampaignRun("softmax", "full", 0), CampaignRun("softmax", "no-islands", 0), CampaignRun("softmax", "greedy", 0),
        CampaignRun("softmax", "full", 1),
    ]  # fmt: skip
    assert runs[3].folder(Path("c")) == Path("c/runs/softmax/full/seed-1")
    assert campaign.config(runs[-1]).task == "layer_norm"


def test_a_campaign_goes_on_only_as_it_was_started(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    Campaign.open(tmp_path / "out", spec, "cpu", HASHES, VERSIONS)
    frozen = json.loads((tmp_path / "out" / FILE).read_text())
    assert len(frozen["hash"]) == 16 and frozen["variants"]["greedy"]["screen_budget"] == 3
    Campaign.open(tmp_path / "out", spec_of(tmp_path, "# a remark\n" + SPEC), "cpu", HASHES, VERSIONS)
    others = (
        (
            spec_of(tmp_path, SPEC.replace("trials = 8", "trials = 9")),
            "cpu",
            HASHES,
            VERSIONS,
            r"variants .*budget expected 8, got 9.*budget \(trials expected 8, got 9\)",
        ),
        (spec, "gpu", HASHES, VERSIONS, "device"),
        (spec, "cpu", {**HASHES, "softmax": "cc"}, VERSIONS, "tasks"),
        (spec, "cpu", HASHES, {**VERSIONS, "code": "other"}, "versions"),
    )
    for other, device, hashes, versions, words in others:
        with pytest.raises(StoreError, match=words):
            Campaign.open(tmp_path / "out", other, device, hashes, versions)
    assert json.loads((tmp_path / "out" / FILE).read_text()) == frozen


def test_variants_that_are_the_same_search_are_refused(tmp_path: Path) -> None:
    text = SPEC.replace('"no-islands", "greedy"', '"no-memetic"')
    plain, screened, unscreened = (
        spec_of(tmp_path, text.replace("islands = 4", setting))
        for setting in ("islands = 4", "screen_budget = 4", "screen_budget = 0")
    )
    Campaign.open(tmp_path / "plain", plain, "cpu", HASHES, VERSIONS)
    Campaign.open(tmp_path / "screened", screened, "gpu", HASHES, VERSIONS)
    # On a GPU nothing is screened if the spec does not say so.
    for spec, device in ((plain, "gpu"), (unscreened, "cpu"), (unscreened, "gpu")):
        with pytest.raises(ConfigError, match="full and no-memetic have the same settings"):
            Campaign.open(tmp_path / "same", spec, device, HASHES, VERSIONS)


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
        ("[variant.greedy]", '[variant."../greedy"]', "variant.../greedy: expected a name of at most 100 letters"),
        ("[variant.greedy]", '[variant."/tmp/greedy"]', "neither '.' nor '..', got '/tmp/greedy'; choose another"),
        ("[variant.greedy]", '[variant.".."]', "got '..'"),
        ("[variant.greedy]", '[variant."."]', "got '.'"),
        ("[variant.greedy]", '[variant.""]', "got ''"),
        ("seeds = 2", "sedes = 2", "expected keys among .* got sedes"),
        ("trials = 8", "trials = 8\ntokens = 7", "budget: expected models if tokens are limited"),
        ('"greedy"]', '"gready"]', "expected names among full, .*greedy, got gready"),
        ("trials = 8", "tokens = 7", "budget: expected a table with `trials`"),
        ("trials = 8", "trials = 8\nusd = 7", "budget: expected keys among trials, tokens, gpu_seconds, got usd"),
        ('"greedy"]', '"no-repair"]', "variants: expected a model for no-repair, got none"),
        ('"greedy"]', '"full"]', "variants: expected each name once"),
        ("[variant.greedy]", "[variant.random]", "variant.random: expected a new name"),
        ("screen_budget = 3", "screening = 3", "variant.greedy: expected keys among .* got screening"),
        ("islands = 4", "budget = 4", "run: expected keys among .* got budget"),
        ('["softmax", "layer_norm"]', '"softmax"', "tasks: expected a list of names"),
        ("seeds = 2", "seeds = ", "expected a campaign as TOML"),
        (
            "islands = 4",
            "islands = 0",
            "^run.islands: expected an integer from 1 to 64, got 0; set another in the spec",
        ),
        (
            "screen_budget = 3",
            "screen_budget = -3",
            "^variant.greedy.screen_budget: expected an integer from 0 to 10000",
        ),
        ("islands = 4", "guidance = 'all'", "^run.guidance: expected one of digest, raw, none, got 'all'"),
        ("islands = 4", "strategy = 'best-of-n'", "^run.strategy: expected a model for best-of-n .* add models = "),
        (SPEC[SPEC.index("[variant") :], "", "variants: expected names among"),
        (SPEC[SPEC.index("[budget]") :], "variant = 5", r"variant: expected tables \[variant.NAME\], got 5"),
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
        ('strategy = "hillclimb"', 'strategy = ["a"]', r"variant.greedy.strategy: expected a text, got \['a'\]"),
        ("screen_budget = 3", "operators = [5]", r"variant.greedy.operators: expected a list of names, got \[5\]"),
        ("screen_budget = 3", "guidance = 5", "variant.greedy.guidance: expected a text, got 5"),
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


def test_runs_of_gpu_seconds_need_a_gpu(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SPEC.replace("trials = 8", "trials = 500\ngpu_seconds = 60"))
    campaign = Campaign.open(tmp_path / "out", spec, "gpu", HASHES, VERSIONS)
    assert {(campaign.config(c).budget, campaign.config(c).gpu_seconds) for c in campaign.runs()} == {(500, 60)}
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
variants = [
    "full", "no-llm", "no-profile", "raw-profile", "no-repair", "no-crossover", "best-of-n", "tritonforge", "random"
]
[budget]
trials = 8
tokens = 5000
"""


def test_variants_of_models(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[models.m]\nendpoint = "http://localhost:1/v1"\n')
    spec = spec_of(tmp_path, MODELS)
    variants = {variant: spec.config("softmax", variant, 0, "cpu") for variant in spec.variants}
    full = variants["full"]
    rules = ("params", "rewrite", "recombine")
    assert full.operators == (*rules, "mutate@m", "crossover@m", "repair@m", "explore@m")
    assert ([m.endpoint for m in full.models], full.max_tokens) == (["http://localhost:1/v1"], 5000)
    assert full.serial and full.triton
    changed = {a: {k for k, v in vars(full).items() if vars(c)[k] != v} for a, c in variants.items() if a != "full"}
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
    assert variants["no-llm"].operators == rules
    assert variants["no-repair"].operators == (*rules, "mutate@m", "crossover@m", "explore@m")
    assert variants["no-crossover"].operators == ("params", "rewrite", "mutate@m", "repair@m", "explore@m")
    assert variants["best-of-n"].operators == ("mutate@m",)
    assert variants["tritonforge"].operators == ("mutate@m", "repair@m")
    frozen = Campaign.open(tmp_path / "out", spec, "cpu", {"softmax": "aa"}, VERSIONS)
    assert Campaign.open(tmp_path / "out", spec, "cpu", {"softmax": "aa"}, VERSIONS).runs() == frozen.runs()


def test_a_folder_with_a_run_takes_no_campaign(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "run.sqlite").write_text("")
    with pytest.raises(StoreError, match=r"holds a run \(run.sqlite\); choose another by --out"):
        Campaign.open(folder, spec_of(tmp_path), "cpu", HASHES, VERSIONS)
    assert not (folder / FILE).exists()


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", "7", '{"variants": {"full": 1}}', '{"variants": {}, "tasks": {}, "seeds": "a"}']
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


def test_files_of_earlier_versions_say_arms_and_cells(tmp_path: Path) -> None:
    new = spec_of(tmp_path)
    assert spec_of(tmp_path, SPEC.replace("variants = ", "arms = ").replace("[variant.", "[arm.")) == new
    with pytest.raises(ConfigError, match="expected variants, got variants and its earlier name arms; move all below"):
        spec_of(tmp_path, 'arms = ["full"]\n' + SPEC)
    campaign = Campaign.open(tmp_path / "out", new, "cpu", HASHES, VERSIONS)
    plan, path = read_plan(tmp_path / "out"), tmp_path / "out" / FILE
    path.write_text(path.read_text().replace('"variants"', '"arms"'))
    assert read_plan(tmp_path / "out") == plan
    assert Campaign.open(tmp_path / "out", new, "cpu", HASHES, VERSIONS).runs() == campaign.runs()
    (tmp_path / "out" / "cells").mkdir()
    assert plan.runs[0].folder(tmp_path / "out") == tmp_path / "out/cells/softmax/full/seed-0"


def test_new_versions_are_accepted_where_asked_and_earlier_ones_are_kept(tmp_path: Path) -> None:
    spec, folder = spec_of(tmp_path), tmp_path / "out"
    other, third = {**VERSIONS, "code": "other"}, {**VERSIONS, "code": "third"}
    Campaign.open(folder, spec, "cpu", HASHES, VERSIONS, new_versions=True)
    assert "earlier_versions" not in json.loads((folder / FILE).read_text())  # nothing changed
    with pytest.raises(StoreError, match="if versions alone differ, --new-versions goes on with the new ones"):
        Campaign.open(folder, spec, "cpu", HASHES, other)
    for versions in (other, other, third):
        Campaign.open(folder, spec, "cpu", HASHES, versions, new_versions=True)
    Campaign.open(folder, spec, "cpu", HASHES, third)
    found = json.loads((folder / FILE).read_text())
    assert (found["versions"], found["earlier_versions"]) == (third, [VERSIONS, other])
    longer = dataclasses.replace(spec, trials=spec.trials + 1)
    with pytest.raises(StoreError, match="budget"):
        Campaign.open(folder, longer, "cpu", HASHES, other, new_versions=True)
    assert json.loads((folder / FILE).read_text()) == found


def test_tasks_may_come_later(tmp_path: Path) -> None:
    spec = dataclasses.replace(spec_of(tmp_path), tasks=())
    campaign = Campaign.open(tmp_path / "out", spec, "cpu", {}, VERSIONS)
    assert campaign.runs() == []
    campaign.add("softmax", "folder/softmax", "aa")
    assert {run.task for run in campaign.runs()} == {"softmax"}
    assert campaign.config(campaign.runs_of("softmax")[0]).task == "folder/softmax"
    again = Campaign.open(tmp_path / "out", spec, "cpu", {}, VERSIONS)
    assert len(read_plan(tmp_path / "out").runs) == 6
    with pytest.raises(StoreError, match="task softmax differ"):
        again.add("softmax", "folder/softmax", "bb")
    with pytest.raises(StoreError, match="versions \\(code expected"):
        Campaign.open(tmp_path / "out", spec, "cpu", {}, {**VERSIONS, "code": "other"})


SUITE = """
seeds = 1
variants = ["full", "random"]
[suite]
name = "kernelbench"
path = "checkout"
only = ["level1_1*", "level1_2_*"]
gib = 1
[budget]
trials = 2
"""


def test_a_spec_may_name_a_suite(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    spec = spec_of(tmp_path, SUITE)
    assert spec.tasks == ()
    assert spec.suite == SuiteSelection("kernelbench", tmp_path / "checkout", "level1_1*,level1_2_*", None, 1)
    for old, new, words in (
        ("seeds = 1", 'seeds = 1\ntasks = ["softmax"]', "tasks: expected tasks or a suite, got both"),
        ('path = "checkout"', "", "suite.path: expected a text, got None"),
        ("gib = 1", "gib = true", "suite.gib: expected a number, got True"),
        ("gib = 1", "size = 1", "suite: expected keys among name, path, only, seeds, own_seeds, gib, got size"),
        ("seeds = 1", "seeds = 1\nllm_concurrency = 0", "llm_concurrency: expected an integer from 1 to 1024, got 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            spec_of(tmp_path, SUITE.replace(old, new, 1))


def test_the_first_that_evaluates_decides_device_and_versions(tmp_path: Path) -> None:
    spec, own, full = spec_of(tmp_path), {"evo": "1"}, {"evo": "1", "torch": "2"}
    assert Campaign.open(tmp_path / "out", spec, "", HASHES, own).device == ""
    assert Campaign.open(tmp_path / "out", spec, "", HASHES, own).device == ""
    with pytest.raises(StoreError, match=r"versions \(evo expected '1', got '2'\)"):
        Campaign.open(tmp_path / "out", spec, "gpu", HASHES, {"evo": "2", "torch": "2"})
    assert Campaign.open(tmp_path / "out", spec, "gpu", HASHES, full).device == "gpu"
    frozen = json.loads((tmp_path / "out" / FILE).read_text())
    assert (frozen["device"], frozen["versions"]) == ("gpu", full)
    assert Campaign.open(tmp_path / "out", spec, "", HASHES, own).device == "gpu"
    assert json.loads((tmp_path / "out" / FILE).read_text()) == frozen
    with pytest.raises(StoreError, match="device expected 'gpu', got 'cpu'"):
        Campaign.open(tmp_path / "out", spec, "cpu", HASHES, full)


def test_the_address_of_a_model_may_change(tmp_path: Path) -> None:
    def opened(url: str, more: str = "") -> Campaign:
        (tmp_path / "models.toml").write_text(f'[models.m]\nendpoint = "{url}"\n{more}')
        return Campaign.open(tmp_path / "out", spec_of(tmp_path, MODELS), "cpu", {"softmax": "aa"}, VERSIONS)

    opened("http://localhost:1/v1")
    campaign = opened("http://localhost:2/v1")
    assert campaign.config(campaign.runs()[0]).models[0].endpoint == "http://localhost:2/v1"
    with pytest.raises(StoreError, match=r"variants \(full \(models "):
        opened("http://localhost:2/v1", "temperature = 0.5\n")


ALONE = """
tasks = ["mine", "softmax"]
seeds = 1
variants = ["full", "best-of-n"]
models = ["m@mailbox:mail"]
baseline = "compile"
allow_delegation = 0.25
[budget]
trials = 8
"""


def test_a_task_without_a_kernel_begins_with_first_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its speedups are over PyTorch; those of the others stay over their seed kernels."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/task.py").write_text("entry = 'mine'\n")
    campaign = Campaign.open(tmp_path / "c", spec_of(tmp_path, ALONE), "gpu", {"mine": "aa", "softmax": "bb"}, VERSIONS)
    full, best_of_n = (campaign.config(CampaignRun("mine", v, 0)) for v in ("full", "best-of-n"))
    other = campaign.config(CampaignRun("softmax", "full", 0))
    assert full.operators == ("initial@m", *other.operators) and best_of_n.operators == ("initial@m",)
    assert (full.baseline, best_of_n.baseline, other.baseline) == ("compile", "compile", "seed")
    assert {full.allow_delegation, other.allow_delegation} == {0.25}
    for run, task_hash in ((CampaignRun("mine", "full", 0), "aa"), (CampaignRun("softmax", "full", 0), "bb")):
        check_run(tmp_path / "c", run, RunInfo(campaign.config(run), task_hash, VERSIONS, {"machine": "x"}))
    eager = dataclasses.replace(full, baseline="eager")
    with pytest.raises(StoreError, match="baseline 'eager' instead of 'compile'"):
        check_run(tmp_path / "c", CampaignRun("mine", "full", 0), RunInfo(eager, "aa", VERSIONS, {"machine": "x"}))
    without = spec_of(tmp_path, ALONE.replace('"best-of-n"', '"no-llm"'))
    campaign = Campaign.open(tmp_path / "d", without, "gpu", {"mine": "aa", "softmax": "bb"}, VERSIONS)
    with pytest.raises(ConfigError, match="expected a model for operator initial"):
        campaign.config(CampaignRun("mine", "no-llm", 0))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('baseline = "compile"', 'baseline = "numpy"', "expected one of eager, compile"),
        ("allow_delegation = 0.25", "allow_delegation = 2", "expected the share of own kernels"),
    ],
)
def test_baselines_of_a_spec_are_checked(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        spec_of(tmp_path, ALONE.replace(old, new))

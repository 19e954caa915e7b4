"""analysis.report: its figures are the store's, its texts are escaped, its page loads nothing, all by keyboard."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from analysis import report
from analysis.report import Bounds, write_report
from evo import api
from evo.cli.main import main
from evo.cli.report import _bounds
from evo.core.errors import ConfigError
from evo.core.records import Fitness, Timing, Trial, Verdict
from evo.storage.folders import FILE
from evo.storage.queries import RunReader
from evo.storage.store import Store
from fitness.estimate.attainable import flops_per_s
from fitness.frontend.target import get_target
from tests import chromium
from tests.engine_support import create, failed_trial, ok_trial, resume, search

EVIL = '"><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>{{ 7 * 7 }}</style></svg>'
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """A page as elements and text; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.source = text
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def with_class(self, name: str) -> list[dict[str, str]]:
        return [attributes for _, attributes in self.elements if name in attributes.get("class", "").split()]


def written(*folders: Path, bounds: Bounds | None = None) -> Page:
    out = folders[0].parent / "report.html"
    write_report(folders, out, [bounds or Bounds()] * len(folders))
    return Page(out.read_text(encoding="utf-8"))


def measured(trial: Trial, seconds: float = 0.5) -> Trial:
    """`trial` as a GPU would have measured it."""
    assert trial.fitness is not None
    ratio = trial.fitness.speedup
    timing = Timing("square", (10 / ratio,) * 3, (10.0,) * 3, ratio, (ratio * 0.99, ratio * 1.01), False)
    evaluation = replace(trial.evaluation, timings=(timing,), seconds={"compile": 0.25, "time": seconds})
    fitness = Fitness(ratio, timing.ci95, {"square": ratio}, estimated=False)
    return replace(trial, evaluation=evaluation, fitness=fitness)


def keep(store: Store, trial: Trial) -> None:
    store.proposed(trial.proposal)
    store.finished(trial)


def call(store: Store, trial: int | None, tokens: tuple[int, int] | tuple[None, None], model: str = "m") -> None:
    store._db.execute(
        "INSERT INTO llm_calls (prompt_hash, model, operator, parents, island, told, trial, request, tokens_in, "
        "tokens_out, error, asked_at) VALUES ('h', ?, 'edit', '[0]', 0, 0, ?, '{}', ?, ?, ?, 0)",
        (model, trial, *tokens, None if trial is not None else "no answer"),
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An estimated run of 60 candidates."""
    folder = tmp_path_factory.mktemp("searched") / "run"
    with create(folder, budget=60) as store:
        search(store)
    return folder


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured run in which everything that a candidate or a model can name is hostile."""
    folder = tmp_path_factory.mktemp("evil") / "run"
    with create(folder, budget=9) as store:
        keep(store, measured(ok_trial(0, operator="seed", source="x = 1\n")))
        keep(store, measured(ok_trial(1, 1.5, parents=(0,), source=f"x = '''{EVIL}'''\n", note=EVIL)))
        keep(store, failed_trial(2, message=EVIL, note=EVIL, parents=(1,), source=f"# {EVIL}\ny = 2\n"))
        keep(store, measured(ok_trial(3, 2.0, parents=(1, 0), source=f"z = '''{EVIL}'''\n", note=EVIL, operator=EVIL)))
        call(store, None, (5, None))  # type: ignore[arg-type]
        call(store, 1, (100, 20), EVIL)
        call(store, 3, (200, 30))
    return folder


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["searched", "evil"])
def test_nothing_is_loaded_and_every_link_leads_somewhere(name: str, request: pytest.FixtureRequest) -> None:
    page = written(request.getfixturevalue(name))
    assert not {tag for tag, _ in page.elements} & {"img", "iframe", "object", "embed", "base", "form"}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        assert not any(attribute.startswith("on") for attribute in attributes), (tag, attributes)
        link = attributes.get("href", "")
        assert link in ("", "data:,") or link.removeprefix("#") in ids, link
        assert not {"src", "srcset", "action", "background", "xlink:href"} & attributes.keys()
        assert "url(" not in attributes.get("style", "")
    policy = next(m["content"] for m in page.of("meta") if "content-security-policy" in m.get("http-equiv", "").lower())
    assert policy.startswith("default-src 'none'")
    # One script, evo's own, which loads nothing: the policy lets it run by its hash, and no other one.
    script = (Path(report.__file__).parent / "templates" / "report.js").read_text().removesuffix("\n")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.endswith(f"; script-src 'sha256-{digest}'") and page.of("script") == [{}]
    assert f"<script>{script}</script>" in page.source
    assert not re.search(r"https?:|import|fetch|XMLHttp|eval|innerHTML", script)


def test_the_style_loads_nothing() -> None:
    style = (Path(report.__file__).parent / "templates" / "report.css").read_text()
    assert not re.search(r"url\(|@import|@font-face", style)


def test_hostile_texts_are_shown_as_texts(evil: Path) -> None:
    page = written(evil)
    assert page.text.count("<script>alert(1)</script>") >= 5  # source, notes, message, operator, model
    assert "{{ 7 * 7 }}" in page.text
    assert "49</style>" not in page.text


def test_what_cannot_be_seen_is_said(searched: Path) -> None:
    page = written(searched)
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.of("svg"))
    assert all(box.get("tabindex") == "0" for box in page.with_class("scroll"))
    assert page.of("html") == [{"lang": "en"}]
    assert any(meta.get("name") == "viewport" for meta in page.of("meta"))


# --- figures ---------------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_store(searched: Path) -> None:
    with RunReader(searched) as run:
        seen = report.view(1, run, Bounds())
        best, trials = run.best(), list(run.trials())
        assert best is not None and best.fitness is not None
        assert seen.course.best == best
        assert seen.course.trials == len(trials) - 1 == 60
        assert sum(seen.course.by_operator.values(), Counter()) == run.verdicts()
        assert [(c.name, c.trials) for c in seen.credit] == [
            (c.name, c.trials) for c in run.operators() if c.name != "seed"
        ]
        assert max(speedup for speedup, _ in seen.course.niches.values()) == best.fitness.speedup
        assert [s["trial"] for s in seen.diffs] == run.lineage(best.index)[::-1]
    page = written(searched)
    low, high = best.fitness.ci95
    assert f"{best.fitness.speedup:.2f}× [{low:.2f}, {high:.2f}]" in page.text
    assert all(f"trial {i}" in page.text for i in (best.index, *best.proposal.parents))


def test_the_time_of_a_case_is_the_median_that_all_else_has() -> None:
    """Of an even number of samples the mean of the two in the middle."""
    timing = Timing("square", (1.0, 2.0, 4.0, 9.0), (8.0, 6.0), 2.0, (1.9, 2.1), False)
    best = SimpleNamespace(fitness=None, evaluation=SimpleNamespace(timings=(timing,)))
    (row,) = report._cases(SimpleNamespace(best=best))
    assert (row["us"], row["seed_us"]) == (timing.median_us, timing.baseline_median_us) == (3.0, 7.0)


def test_the_course_is_the_best_so_far(searched: Path) -> None:
    with RunReader(searched) as run:
        steps = report.view(1, run, Bounds()).course.steps
        best = 0.0
        expected = []
        for spent, trial in enumerate(run.trials()):
            if trial.fitness is not None and trial.fitness.speedup > best:
                best = trial.fitness.speedup
                expected.append((float(spent), trial.index))
    assert [(at["trials"], trial.index) for at, trial in steps] == expected


def test_estimates_are_marked_and_measurements_are_not(searched: Path, evil: Path) -> None:
    estimated, real = written(searched), written(evil)
    assert len(estimated.with_class("estimated")) >= 8
    assert not estimated.with_class("measured")
    assert len(real.with_class("measured")) >= 8
    assert not real.with_class("estimated")
    assert "no GPU measured it" in estimated.text
    assert "no GPU measured it" not in real.text
    together = written(searched, evil)
    assert together.with_class("estimated") and together.with_class("measured")


def test_seconds_on_the_gpu_and_tokens_are_axes_where_they_were_spent(searched: Path, evil: Path) -> None:
    with RunReader(evil) as run:
        course = report.view(1, run, Bounds()).course
    assert [at["GPU seconds"] for at, _ in course.steps] == [0.5, 1.0, 1.5]
    assert [at["tokens"] for at, _ in course.steps] == [0, 125, 355], "the call without a trial counts to the next"
    page = written(evil)
    for axis in ("trials", "GPU seconds", "tokens"):
        assert f"Best so far over {axis}" in page.text
    assert "waiting for the GPU" in page.text
    estimated = written(searched).text
    assert "Best so far over tokens" not in estimated and "waiting for the GPU" not in estimated


def test_the_source_of_the_best_kernel_can_be_copied(evil: Path) -> None:
    page = written(evil)
    (button,) = page.of("button")
    assert button["data-copies"] == "run1-source" and "run1-source" in [a.get("id") for _, a in page.elements]
    with RunReader(evil) as run:
        best = run.best()
    assert best is not None and best.proposal.candidate.source in page.text


def test_the_variants_of_a_campaign_are_shown(tmp_path: Path) -> None:
    settings = {"full": {"islands": 3, "plugins": []}, "no-islands": {"islands": 1, "plugins": []}}
    plan = {"arms": settings, "tasks": {"a": "hash", "b": "hash"}, "seeds": [0, 1]}
    (tmp_path / "campaign.json").write_text(json.dumps(plan))
    folders = []
    for task, variant, seed, speedup in (("a", "full", 0, 4.0), ("a", "full", 1, 1.0), ("a", "no-islands", 0, 3.0)):
        folders.append(tmp_path / "cells" / task / variant / f"seed-{seed}")
        with create(folders[-1]) as store:
            keep(store, measured(ok_trial(0, operator="seed", source="x = 1\n")))
            keep(store, measured(ok_trial(1, speedup, parents=(0,), source="x = 2\n")))
    page = written(*folders)
    assert f"Variants of the campaign {tmp_path}" in page.text
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr>.*?</tr>", page.source)]
    assert ["full", "2", "2.00×", "2.00×"] in rows
    assert ["no-islands", "1", "3.00×", "3.00×", "islands", "1"] in rows
    assert [row[2] for row in rows if row[0] == str(folders[2])] == ["no-islands"]
    alone = written(folders[0])
    assert "Variants of" not in alone.text


def test_what_nobody_counted_is_not_zero(evil: Path) -> None:
    with RunReader(evil) as run:
        models = report.view(1, run, Bounds()).models
    assert [(m.name, m.calls, m.failed, m.tokens_in, m.tokens_out, m.usd) for m in models] == [
        ("m", 2, 1, 205, 30, None),
        (EVIL, 1, 0, 100, 20, None),
    ]
    assert "not counted" in written(evil).text


def test_the_roofline_is_of_the_tasks_work(evil: Path) -> None:
    bounds = Bounds({"square": (4e9, 2e9)}, 4e12, 8e14, "measured on the GPU")
    with RunReader(evil) as run:
        (move,) = report.view(1, run, bounds).moves
    assert move.intensity == 2
    assert move.seed_flops == pytest.approx(4e9 / 10e-6)
    assert move.best_flops == pytest.approx(4e9 / 5e-6)
    page = written(evil, bounds=bounds)
    assert "Ceilings: measured on the GPU" in page.text
    assert "No roofline: the task was changed" in written(evil, bounds=Bounds(problem="the task was changed")).text


def test_cases_have_their_attainable_time(tmp_path: Path) -> None:
    with create(tmp_path / "run") as store:
        keep(store, ok_trial(0, operator="seed", attainable_us=0.25))
        keep(store, ok_trial(1, 2.0, parents=(0,), attainable_us=0.25))
    page = written(tmp_path / "run")
    assert "of attainable" in page.text and "2.00× [1.80, 2.20], 50% of attainable" in page.text
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr>.*?</tr>", page.source)]
    assert ["square", "1.00", "0.50", "0.25", "50%", "2.00×", "[2.00,", "2.00]", "estimated"] in rows


def test_a_run_without_a_result_has_a_report(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    assert "No candidate has a speedup yet" in written(tmp_path / "run").text
    with resume(tmp_path / "run") as store:
        keep(store, failed_trial(0, Verdict.TIMEOUT, operator="seed"))
    assert "timeout" in written(tmp_path / "run").text


def test_long_courses_are_thinned_and_wide_lineages_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "DOTS", 10)
    monkeypatch.setattr(report, "ANCESTORS", 5)
    with create(tmp_path / "run", budget=40) as store:
        keep(store, ok_trial(0, operator="seed"))
        for index in range(1, 40):
            keep(store, ok_trial(index, 1 + index / 10, parents=(max(0, index - 2), index - 1)[: min(2, index)]))
    page = written(tmp_path / "run")
    assert len(page.with_class("dot")) == 10
    assert len(page.with_class("node")) == len(page.of("details")) - 3 == 21


# --- the command -----------------------------------------------------------------------------------------------------


def task(**more: object) -> SimpleNamespace:
    case = SimpleNamespace(name="square", dtype="float16")
    return SimpleNamespace(hash="hash", cases=[case], flops=lambda case: 8.0, bytes=lambda case: 4, **more)


def test_the_command_writes_a_file(searched: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(api, "load_task", lambda name, expected: task())
    out = tmp_path / "out.html"
    assert main(["report", str(searched), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert "Roofline" in Page(out.read_text()).text
    assert main(["report", str(searched.parent), "--out", str(tmp_path / "many.html")]) == 0
    assert (tmp_path / "many.html").read_text() == out.read_text()  # a folder of runs stands for all of them
    assert main(["report", str(searched), f"{searched}/", "--out", str(out)]) == 2
    assert "runs: expected each run once, got" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--out", str(out)]) == 2
    assert "expected a run in" in capsys.readouterr().err
    assert main(["report", str(searched), "--out", str(tmp_path / "no" / "where.html")]) == 2
    assert "name another file by --out" in capsys.readouterr().err


def test_only_a_report_is_replaced(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(api, "load_task", lambda name, expected: task())
    run = tmp_path / "run"
    with create(run) as store:
        store.proposed(ok_trial(0, operator="seed").proposal)
    before = {path: path.read_bytes() for path in sorted(run.iterdir())}
    (tmp_path / "notes.html").write_text("<!doctype html>\n<p>mine</p>\n")
    (tmp_path / "empty").write_text("")
    os.mkfifo(tmp_path / "pipe")
    names = (*before, run / f"{FILE}-wal", run, tmp_path / "notes.html", tmp_path / "empty", tmp_path / "pipe")
    for name in names:
        assert main(["report", str(run), "--out", str(name)]) == 2
        assert re.search(rf"an earlier report at {name}, got .*; name another by --out", capsys.readouterr().err)
    assert {path: path.read_bytes() for path in before} == before
    assert (tmp_path / "notes.html").read_text().endswith("mine</p>\n")
    out = tmp_path / "out.html"
    assert [main(["report", str(run), "--out", str(out)]) for _ in range(2)] == [0, 0]


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path / "run").close()
    before = sorted(tmp_path.iterdir())

    def full(*paths: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="No space left on device; name another file by --out"):
        write_report([tmp_path / "run"], tmp_path / "out.html", [Bounds()])
    assert sorted(tmp_path.iterdir()) == before


def test_ceilings_are_measured_ones_or_the_targets(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "load_task", lambda name, expected: task())
    with RunReader(searched) as run:
        info = run.info
    assert _bounds(info).work == {"square": (8.0, 4.0)}
    target = get_target("sm_90")
    assert _bounds(info).flops_per_s == flops_per_s("float16", target) < target.tensor_flops["float16"]
    assert "of the data sheet of NVIDIA H200" in _bounds(info).ceilings
    here = replace(info, environment={"copy_bytes_per_s": 4e12, "matmul_flops": 7e14})
    assert (_bounds(here).bytes_per_s, _bounds(here).flops_per_s) == (4e12, pytest.approx(7e14))
    assert "measured on the GPU" in _bounds(here).ceilings
    monkeypatch.undo()
    assert "not to be had here" in _bounds(info).problem


def test_a_task_that_was_changed_is_not_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "task.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    (folder / "kernel.py").write_text("def entry(x):\n    return x\n")
    with create(tmp_path / "run", task=str(folder)) as store:
        search(store)
        info = store.info
    assert _bounds(info).problem == "the task was changed since the run started"
    assert main(["replay", str(tmp_path / "run")]) == 2
    assert f"task {folder} has changed since; restore it" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    if chromium.PROGRAM is None:
        pytest.skip("no Chromium")
    with chromium.Browser() as browser:
        yield browser


@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_it_without_errors_and_without_scrolling_sideways(
    browser: chromium.Browser, searched: Path, evil: Path, width: int
) -> None:
    written(searched, evil, bounds=Bounds({"square": (4e9, 2e9)}, 4e12, 8e14, "measured"))
    page = searched.parent / "report.html"
    browser.errors.clear()
    browser.requests.clear()
    browser.open(page, width)
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    smallest = (
        "Math.min(...[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert browser.evaluate(smallest) >= 9, "text in charts is too small to read"
    assert browser.evaluate("document.querySelectorAll('figure svg').length") >= 6


def test_a_keyboard_reaches_a_diff_from_the_lineage(browser: chromium.Browser, searched: Path) -> None:
    written(searched)
    browser.open(searched.parent / "report.html", 1200)
    active = "document.activeElement.getAttribute('href') || document.activeElement.tagName"
    reached = []
    for _ in range(60):
        browser.press("Tab")
        reached.append(browser.evaluate(active))
        if str(reached[-1]).startswith("#run1-trial0"):
            break
    assert reached[0] == "#main", "the first stop skips to the report"
    assert reached[-1] == "#run1-trial0"
    closed = "document.getElementById('run1-trial0').closest('details').open"
    assert browser.evaluate(closed) is False
    browser.press("Enter")
    assert browser.evaluate("location.hash") == "#run1-trial0"
    assert browser.evaluate(closed) is True

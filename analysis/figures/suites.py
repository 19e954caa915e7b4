"""Computes the figures of campaigns over benchmark suites: TritonBench-G, KernelBench."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import stats
from analysis.figures.text import Figures, arithmetic, geometric, median, percent, share, table, times, within
from analysis.outcomes import SUCCESS
from analysis.suite import FAST, SuiteKernel, ratios
from analysis.suite import count as candidates_of
from analysis.suite_kernels import FILE, merged, read_kernels

Rows = list[dict[str, Any]]


def parquet(path: Path) -> Rows:
    """Returns the rows of a table."""
    import pyarrow.parquet

    rows: Rows = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def csv_rows(path: Path) -> Rows:
    """Returns the rows of a file of comma-separated values, all of them text."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- TritonBench-G ----------------------------------------------------------------------------------------------------

# Rules that were written or weighted after searches over this suite; a search without them is an independent one.
CHOSEN_RULES = frozenset({"exact_grid", "rows_per_program", "whole_row", "tiles_per_program", "persistent"})
_PARTS = (".", "later", "attention")  # campaigns, in the order in which they count
_BETTER = 1.03  # a candidate that raises the best by this factor counts as better, in the table of operators
FAR = 10  # a seed kernel that can be made so many times as fast was none that anybody would use
_FEW = 30  # candidates below which an operator has no line of its own


def tritonbench_g(folder: Path) -> Figures:
    """Returns the figures of the three campaigns over TritonBench-G, and of the certificates made afterwards."""
    kernels = [k for k in merged(read_kernels(folder / part / FILE) for part in _PARTS) if k.outcome]
    later = [json.loads(line) for line in (folder / "certificates.jsonl").read_text(encoding="utf-8").splitlines()]
    speedups = [k.speedup for k in kernels]
    gains = [s for s in speedups if s >= SUCCESS]
    trials = _by_run(parquet(folder / "trials.parquet"))
    figures = {
        "limit": times(SUCCESS),
        "searched": str(len(kernels)),
        "successes": str(len(gains)),
        "success": share(len(gains), len(kernels)),
        "median": median(speedups),
        "mean": geometric(speedups),
        "median-of-successes": median(gains),
        "mean-of-successes": arithmetic(gains),
        "operators": _operators(trials),
    }
    return figures | _by_candidates(kernels) | _certified(kernels, later) | _without_chosen_rules(trials)


def _certified(kernels: Sequence[SuiteKernel], later: Rows) -> Figures:
    """Returns the certified successes by strength; `later`: certificates made after the campaign, on successes."""
    of = len(kernels)
    quick = [k.outcome.certified for k in kernels if k.outcome and k.outcome.certified >= SUCCESS]
    passed = {row["kernel"]: row["certificate"] for row in later if (row["certificate"] or {}).get("verdict") == "ok"}
    outcomes = {name: {c["what"]: c["outcome"] for c in found["checks"]} for name, found in passed.items()}
    sanitized = [o for o in outcomes.values() if o.get("memcheck") == o.get("racecheck") == "passed"]
    hazard = [o for o in outcomes.values() if o.get("racecheck") == "noted"]
    # A check of a size that is not among the task's cases is called "eager: CASE with AXIS=N".
    new_sizes = [o for o in outcomes.values() if any(" with " in what and o[what] == "passed" for what in o)]
    best = [max(k.outcome.certified if k.outcome else 1.0, k.speedup if k.name in passed else 1.0) for k in kernels]
    successes = sum(k.speedup >= SUCCESS for k in kernels)
    rows = [
        ("none", successes - len(quick) - len(passed)),
        ("quick, within its search: the candidate's own Python on new inputs", len(quick)),
        ("afterwards: the same on all calls, memcheck and racecheck without an error", len(sanitized)),
        ("afterwards, but racecheck reports an error", len(hazard)),
        ("afterwards, but the sanitizers did not run", len(passed) - len(sanitized) - len(hazard)),
        ("with sizes that are not among the task's calls", len(new_sizes)),
    ]
    return {
        "certified": share(len(quick) + len(passed), of),
        "certified-count": str(len(quick) + len(passed)),
        "certified-quick": share(len(quick), of),
        "certified-quick-count": str(len(quick)),
        "certified-later-count": str(len(passed)),
        "sanitized-count": str(len(sanitized)),
        "new-sizes-count": str(len(new_sizes)),
        "certified-mean": times(stats.geometric_mean(best)),
        "certified-median": median(best),
        "certificates": table(("certificate of a success", "kernels"), [(what, str(n)) for what, n in rows]),
    }


def _by_candidates(kernels: Sequence[SuiteKernel]) -> Figures:
    """Returns the share of successes after some numbers of candidates."""
    curves = [k.outcome.curve for k in kernels if k.outcome]
    return {
        f"success-after-{n}": percent(sum(curve[n - 1] >= SUCCESS for curve in curves), len(curves))
        for n in (8, 16, 32, 64)
    }


def _by_run(rows: Rows) -> dict[str, Rows]:
    runs: dict[str, Rows] = defaultdict(list)
    for row in rows:
        runs[row["run"]].append(row)
    return runs


def _operator(row: Mapping[str, Any]) -> str:
    """Returns the name of the rule of a rewrite, of other candidates that of their operator."""
    return row["note"].split(":")[0] if row["operator"] == "rewrite" else row["operator"]


def _gain(row: Mapping[str, Any]) -> float:
    return row["speedup"] if row["speedup"] and row["ci_low"] > 1 else 1.0


def _without_chosen_rules(runs: Mapping[str, Rows]) -> Figures:
    """Returns what candidates reached that have none of CHOSEN_RULES in their lineage, over finished searches.

    It is a lower bound: without these rules a search would have tried others in their place.
    """
    best = []
    for rows in runs.values():
        if all(row["finished"] is not None for row in rows):
            chosen: set[int] = set()
            for row in sorted(rows, key=lambda row: row["trial"]):  # parents come first
                if _operator(row) in CHOSEN_RULES or chosen & set(row["parents"]):
                    chosen.add(row["trial"])
            best.append(max(_gain(row) for row in rows if row["trial"] not in chosen))
    return {
        "without-rules-searches": str(len(best)),
        "without-rules-success": share(sum(b >= SUCCESS for b in best), len(best)),
        "without-rules-mean": geometric(best),
    }


def _operators(runs: Mapping[str, Rows]) -> str:
    """Returns the table of operators: candidates, how many raised the best, and by how much."""
    count: Counter[str] = Counter()
    better: Counter[str] = Counter()
    gain: defaultdict[str, float] = defaultdict(float)
    for rows in runs.values():
        best = 1.0
        finished = (row for row in rows if row["finished"] is not None and row["trial"])
        for row in sorted(finished, key=lambda row: row["finished"]):
            name, reached = _operator(row), _gain(row)
            count[name] += 1
            if reached > best:
                better[name] += reached >= _BETTER * best
                gain[name] += math.log(reached / best)
                best = reached
    few = [name for name in count if count[name] < _FEW]
    kept = sorted((name for name in count if name not in few), key=lambda name: -gain[name] / count[name])
    lines = [(name, str(count[name]), str(better[name]), f"{gain[name] / count[name]:.3f}") for name in kept]
    rest = [sum(counter[name] for name in few) for counter in (count, better, gain)]
    label = f"{', '.join(sorted(few))} (fewer than {_FEW} each)"
    return table(
        ("operator", "n", "better", "gain"), [*lines, (label, str(rest[0]), str(rest[1]), f"{rest[2] / rest[0]:.3f}")]
    )


# --- KernelBench ------------------------------------------------------------------------------------------------------


def seeds_beside_pytorch(folder: Path) -> Figures:
    """Returns what seed kernels are beside PyTorch."""
    kernels = [k for k in read_kernels(folder / FILE) if k.baselines]
    return {"problems": str(len(kernels))} | _beside_pytorch(kernels)


def searched(folder: Path) -> Figures:
    """Returns what one campaign over a suite came to.  A search that is not finished counts as none.

    "far" names kernels whose seed was so slow that few of them move a mean; "mean-rest" is the mean without them.
    """
    kernels = [k for k in read_kernels(folder / FILE) if not k.reason]
    done = [k for k in kernels if k.outcome]
    speedups = [k.speedup for k in done]
    again = [k.outcome.retimed / k.outcome.best for k in done if k.outcome and k.outcome.retimed is not None]
    figures = {
        "limit": times(SUCCESS),
        "files": str(len(kernels)),
        "searched": str(len(done)),
        "candidates": str(sum(candidates_of(k) for k in done)),
        "success": share(sum(s >= SUCCESS for s in speedups), len(done)),
        "retimed": f"{len(again)} of {len(done)}",
        "kept": f"{stats.geometric_mean(again):.3f}",
        "median": median(speedups),
        "mean": geometric(speedups),
        "far": ", ".join(f"`{k.name}` ({times(k.speedup)})" for k in done if k.speedup >= FAR),
        "mean-rest": geometric([s for s in speedups if s < FAR]),
    }
    return figures | _beside_pytorch(done)


def _beside_pytorch(kernels: Sequence[SuiteKernel]) -> Figures:
    """Returns what the best kernels are over PyTorch.  A ratio whose interval includes 1 is a tie."""
    names = ("eager", "torch.compile")
    found, faster = ratios(kernels, names)

    def row(what: str, count: Mapping[str, int]) -> tuple[str, ...]:
        return what, *(f"{count[name]} of {len(found[name])}, {share(count[name], len(found[name]))}" for name in names)

    rows = [row(f"fast_{p:g}", {name: sum(ratio > p for ratio in faster[name]) for name in names}) for p in FAST]
    rows.insert(1, row("tie (the 95% interval includes 1)", {n: len(found[n]) - len(faster[n]) for n in names}))
    rows += [
        ("median", *(median(found[n]) for n in names)),
        ("geometric mean", *(geometric(found[n]) for n in names)),
    ]
    figures = {"table": table(("over", *names), rows)}
    for name, key in zip(names, ("eager", "compile"), strict=True):
        figures[f"{key}-fast1"] = f"{sum(ratio > 1 for ratio in faster[name])} of {len(found[name])}"
        figures[f"{key}-ties"] = str(len(found[name]) - len(faster[name]))
        figures[f"{key}-median"] = median(found[name])
        figures[f"{key}-mean"] = times(stats.geometric_mean(found[name]))
    return figures


def kernelbench_claude(folder: Path) -> Figures:
    """Returns what a model's kernels are over `torch.compile`, from the exported tables of the campaign."""
    runs = parquet(folder / "tables" / "runs.parquet")
    trials = _by_run(parquet(folder / "tables" / "trials.parquet"))
    timings = _by_run(parquet(folder / "tables" / "timings.parquet"))
    found = sorted((_problem(run, trials[run["run"]], timings[run["run"]]) for run in runs), key=lambda p: p["order"])
    lines = (folder / "certificates.jsonl").read_text(encoding="utf-8").splitlines()
    certified = {c["problem"] for c in map(json.loads, lines) if c["certificate"] == "ok"}
    for problem in found:
        problem["certified"] = problem["run"] in certified
    candidates = [row for run in runs for row in trials[run["run"]] if row["trial"] and row["finished"] is not None]
    answers = [row for row in candidates if "@" in row["operator"]]
    levels = {level: [p for p in found if p["level"] == level] for level in (1, 2)}
    head = (
        "level, problem",
        "answers + rule-based",
        "ok",
        "µs, compile → best",
        "times as fast [95 %]",
        "not evaluated",
    )
    rows = [
        (f"{p['level']}, {p['name']}", f"{p['answers']} + {p['rules']}", str(p["ok"]), p["times"],
         within(p["speedup"], *p["ci95"]), str(p["pending"]))
        for p in found
    ]  # fmt: skip
    figures = {
        "problems": str(len(found)),
        "right": str(sum(p["ok"] > 0 for p in found)),
        "answers": f"{sum(row['verdict'] == 'ok' for row in answers)} of {len(answers)}",
        "candidates": str(len(candidates)),
        "failed": str(sum(row["verdict"] not in ("ok", "duplicate") for row in candidates)),
        "table": table(head, rows),
        "levels": _levels(levels),
        "certified": f"{sum(p['certified'] for p in found)} of {len(found)}",
    }
    for level, problems in levels.items():
        best = [p["speedup"] for p in problems]
        figures[f"level{level}-faster"] = f"{sum(p['ci95'][0] > 1 for p in problems)} of {len(problems)}"
        figures[f"level{level}-median"] = median(best)
    return figures


def _problem(run: Mapping[str, Any], trials: Rows, timings: Rows) -> dict[str, Any]:
    """Returns one problem's row as values."""
    level, name = run["run"].split("/")[0].removeprefix("level").split("_", 1)
    candidates = [row for row in trials if row["trial"]]
    done = [row for row in candidates if row["finished"] is not None]
    right = [row for row in done if row["verdict"] == "ok"]
    best = max(right, key=lambda row: row["speedup"])
    first = min((row for row in right if "@" in row["operator"]), key=lambda row: row["trial"])
    mine = [row for row in timings if row["trial"] == best["trial"]]
    us = [
        statistics.median(v for row in mine if (v := row[kind]) is not None) for kind in ("baseline_us", "candidate_us")
    ]
    return {
        "run": run["run"].split("/")[0],
        "level": int(level), "name": name.rstrip("_"), "order": (int(level), int(name.split("_")[0])),
        "answers": sum("@" in row["operator"] for row in done),
        "rules": sum("@" not in row["operator"] for row in done),
        "ok": len(right), "pending": len(candidates) - len(done), "times": " → ".join(f"{value:.4g}" for value in us),
        "speedup": best["speedup"], "ci95": (best["ci_low"], best["ci_high"]), "first": first["speedup"],
    }  # fmt: skip


def _certified_faster(problems: Sequence[Mapping[str, Any]]) -> int:
    return sum(p["certified"] and p["ci95"][0] > 1 for p in problems)


def _levels(levels: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
    """Returns fast_p and means by level; faster is a best whose interval lies above 1."""

    def row(what: str, values: Sequence[str]) -> tuple[str, ...]:
        return what, *values

    best = {level: [p["speedup"] if p["ci95"][0] > 1 else 1.0 for p in ps] for level, ps in levels.items()}
    fast = [
        row(
            f"fast_{limit:g}",
            [
                f"{sum(s > limit for s in b)} of {len(b)}, {share(sum(s > limit for s in b), len(b))}"
                for b in best.values()
            ],
        )
        for limit in FAST
    ]
    rows = [
        row("problems with a right kernel", [str(sum(p["ok"] > 0 for p in ps)) for ps in levels.values()]),
        *fast,
        row(
            "fast_1, if the best is certified in full",
            [f"{n} of {len(ps)}, {share(n, len(ps))}" for ps in levels.values() for n in [_certified_faster(ps)]],
        ),
        row("median of the best", [median([p["speedup"] for p in ps]) for ps in levels.values()]),
        row("geometric mean of the best", [geometric([p["speedup"] for p in ps]) for ps in levels.values()]),
        row("geometric mean of the first right answer",
            [times(stats.geometric_mean([p["first"] for p in ps])) for ps in levels.values()]),
    ]  # fmt: skip
    return table(("over `torch.compile`", *(f"level {level} ({len(ps)})" for level, ps in levels.items())), rows)


# --- TritonBench-G, by a language model -------------------------------------------------------------------------------

FIRST = "evolve"  # the variant that others are compared with
AFTER = (1, 2, 4, 8, 12)  # answers
OF_RANGE = "attention_score"  # the kernel whose greatest gain rests on the range of its inputs


def tritonbench_claude(folder: Path) -> Figures:
    """Returns what variants of a search made of a model's answers, from one row an evaluated answer."""
    rows = csv_rows(folder / "answers.csv")
    answers: dict[str, dict[str, Rows]] = defaultdict(lambda: defaultdict(list))  # kernel -> variant -> in order
    for row in rows:
        answers[row["kernel"]][row["variant"]].append(row)
    variants = sorted({row["variant"] for row in rows}, key=lambda name: (name != FIRST, name))
    right = [row for row in rows if row["verdict"] == "ok"]
    return {
        "kernels": str(len(answers)),
        "answers": str(len(rows)),
        "right": share(len(right), len(rows)),
        "table": _of_kernels(answers, variants),
        "after": _after(answers, variants),
        "after-without": _after({k: by for k, by in answers.items() if k != OF_RANGE}, variants),
    }


def _best(rows: Rows, count: int | None = None) -> float:
    """Returns the greatest speedup of the first `count` answers; 1 if none is faster than the seed kernel."""
    return max([1.0, *(float(row["speedup"]) for row in rows[:count] if row["verdict"] == "ok")])


def _of_kernels(answers: Mapping[str, Mapping[str, Rows]], variants: Sequence[str]) -> str:
    rows = []
    for kernel, by_variant in answers.items():
        found = (f"{_best(by_variant[name]):.2f} ({len(by_variant[name])})" for name in variants)
        right = [row for of in by_variant.values() for row in of if row["verdict"] == "ok"]
        if not right:
            rows.append((kernel, "?", "none is right", "?", *found))
            continue
        best = max(right, key=lambda row: float(row["speedup"]))
        us, least = (best[name].split(";") for name in ("us", "attainable_us"))
        shares = (f"{100 * float(a) / float(b):.0f} %" if a else "?" for a, b in zip(least, us, strict=True))
        rows.append((kernel, best["seed_us"].replace(";", ", "), ", ".join(us), ", ".join(shares), *found))
    return table(("kernel", "seed, µs", "best, µs", "of attainable", *variants), rows)


def _after(answers: Mapping[str, Mapping[str, Rows]], variants: Sequence[str]) -> str:
    """Returns a row for each number of answers and other variant: both over the kernels at which each has so many."""
    rows = []
    for count in AFTER:
        for other in (name for name in variants if name != FIRST):
            both = [by for by in answers.values() if min(len(by[FIRST]), len(by[other])) >= count]
            if not both:
                continue
            ours, theirs = ([_best(by[name], count) for by in both] for name in (FIRST, other))
            ratio = geometric([a / b for a, b in zip(ours, theirs, strict=True)])
            rows.append((str(count), other, str(len(both)), geometric(ours), geometric(theirs), ratio))
    return table(("answers", "beside", "kernels", FIRST, "the other", f"{FIRST} over it"), rows)

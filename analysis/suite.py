"""Summarizes the searches over a benchmark suite as Markdown: shares and means over its kernels, by length too.

Failures count as 1.0x in the geometric mean.  TritonForge (arXiv:2512.09196) reports the share of kernels that got at
least 1.05x faster and the mean of those alone; the summary has both.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from analysis.outcomes import SUCCESS, Outcome
from analysis.stats import geometric_mean, interval, pass_at, share_interval

RIGHT = ("ok", "duplicate")
VALID = (*RIGHT, "wrong")  # they compiled and ran
# Share of kernels that are faster than this: fast_p of KernelBench (Ouyang et al. 2025, arXiv:2502.10517).
FAST = (1.0, 1.2, 2.0)


@dataclass(frozen=True)
class SuiteBaseline:
    """PyTorch beside the kernel that a search starts from.  `error`: why there are no times."""

    us: float
    seed_us: float
    ratio: float  # PyTorch over the kernel, of pairs
    ci95: tuple[float, float]
    error: str = ""


@dataclass(frozen=True)
class SuiteKernel:
    """One file, or one of its runs by several variants or seeds.

    `reason`: why it was not searched, "" if it was; `outcome` exists if its run is finished.

    `baselines`: by name, measured on the GPU of the search; `note`: what is to be known of its task; `unknown`: figures
    of its run that an earlier version of evo did not store ("certified", "gpu_seconds", "successes", "valid");
    `so_far`: how far a run came that is not finished.
    """

    name: str
    lines: int  # of code, blank ones and comments left out
    reason: str = ""
    outcome: Outcome | None = None
    baselines: Mapping[str, SuiteBaseline] = field(default_factory=dict)
    note: str = ""
    unknown: frozenset[str] = frozenset()
    variant: str = ""
    seed: int = 0
    so_far: str = ""

    @property
    def speedup(self) -> float:
        """The speedup of the best candidate beyond its interval, of its second timing if there is one; 1 without."""
        return self.outcome.reported if self.outcome else 1.0

    def over(self, name: str) -> float | None:
        """Returns how many times as fast as that baseline the best is, or without a search the kernel itself.

        The product of two measured ratios: the best over the kernel, the kernel over the baseline.
        """
        known = self.baselines.get(name)
        return None if known is None or known.error else self.speedup * known.ratio

    def ties(self, name: str) -> bool:
        """Returns whether the interval of `over(name)` includes 1, so that neither side is faster.

        Errors of the two ratios are independent: the logarithms of their half-widths add up in quadrature.
        """
        known, over = self.baselines[name], self.over(name)
        assert over is not None  # only baselines with a time are asked for
        best, ci95 = (self.outcome.reported, self.outcome.reported_ci95) if self.outcome else (1.0, (1.0, 1.0))
        low, high = (math.hypot(math.log(known.ci95[end] / known.ratio), math.log(ci95[end] / best)) for end in (0, 1))
        return over * math.exp(-low) <= 1 <= over * math.exp(high)


def code_lines(source: str) -> int:
    lines = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def summary(kernels: Sequence[SuiteKernel], *, with_pytorch: bool = False, suite: bool = True) -> str:
    """The summary of each variant, as `markdown` writes it.

    Raises ValueError if nothing was searched and nothing measured.
    """
    variants = {k.variant: [o for o in kernels if o.variant == k.variant] for k in kernels}
    if len({k.seed for k in kernels}) > 1:  # a row for each run, and figures over runs
        variants = {v: [replace(k, name=f"{k.name}, seed {k.seed}") for k in ks] for v, ks in variants.items()}
    if len(variants) == 1:
        return markdown(next(iter(variants.values())), with_pytorch=with_pytorch, suite=suite)
    known = {v: ks for v, ks in variants.items() if any(k.outcome or k.baselines or k.so_far for k in ks)}
    if not known:
        raise ValueError("no kernel was searched")
    return "\n".join(f"# {v}\n\n{markdown(ks, with_pytorch=with_pytorch, suite=suite)}" for v, ks in known.items())


def markdown(kernels: Sequence[SuiteKernel], *, with_pytorch: bool = False, suite: bool = True) -> str:
    """The summary; `with_pytorch`: of a suite with references in PyTorch; `suite`: False for tasks of no suite.

    Raises ValueError if nothing was searched and nothing measured.
    """
    done = [k for k in kernels if k.outcome]
    timed = [k for k in kernels if k.baselines]
    unfinished = [k for k in kernels if k.so_far]
    if not done and not timed and not unfinished:
        raise ValueError("no kernel was searched")
    refused = [k for k in kernels if k.reason]
    parts = [_head(kernels, done, refused, suite)]
    if done:
        attained = ["of attainable"] if _attained(done) else []
        parts += [
            _table(("figure", "value"), _figures(done)),
            *_by_candidates(done),
            "By length of the code, shortest quarter first:\n",
            _table(("quarter", "lines", "kernels", f"success ≥ {SUCCESS}×", "geometric mean"), _quarters(done)),
            _table(
                ("kernel", "lines", "best", "95% interval", "certified", *attained, "candidates"),
                [_row(k, bool(attained)) for k in _fastest_first(done)],
            ),
        ]
    if timed:
        parts += _beside_pytorch(timed)
    elif with_pytorch:
        parts.append("No times of PyTorch, eager or compiled: PyTorch is timed on a GPU alone, never estimated.\n")
    if unfinished:
        rows = [(k.name, _cell(k.so_far)) for k in unfinished]
        parts += ["Not finished, so not counted:\n", _table(("kernel", "so far"), rows)]
    if refused:
        parts += ["Not runnable here:\n", _table(("kernel", "why"), [(k.name, _cell(k.reason)) for k in refused])]
    return "\n".join(parts)


def _head(
    kernels: Sequence[SuiteKernel], done: Sequence[SuiteKernel], refused: Sequence[SuiteKernel], suite: bool
) -> str:
    kind = "estimated by a model of the target" if any(k.outcome and k.outcome.estimated for k in done) else "measured"
    waiting = len(kernels) - len(done) - len(refused)
    begun = done or any(k.so_far for k in kernels)
    unfinished = f", {waiting} not {'finished' if begun else 'searched'}" if waiting else ""
    over = "the suite's own kernels (where it has none: seed kernels)" if suite else "the seed kernels"
    said = f" Speedups over {over}, {kind}; a gain within its 95% interval counts as none."
    total = f"{len(kernels)} {'files' if suite else 'kernels'}"
    counts = f"{total}: {len(done)} searched, {len(refused)} not runnable here{unfinished}."
    return f"{counts}{said if done else ''}\n"


def ratios(
    kernels: Sequence[SuiteKernel], names: Sequence[str]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns what the best kernels are over each baseline, by its name: all ratios, and those that are no ties."""
    found = {name: [s for k in kernels if (s := k.over(name)) is not None] for name in names}
    return found, {n: [s for k in kernels if (s := k.over(n)) is not None and not k.ties(n)] for n in names}


def _beside_pytorch(timed: Sequence[SuiteKernel]) -> list[str]:
    """fast_p against PyTorch, and its times.  Searches that are not finished count as none."""
    names = sorted({name for k in timed for name in k.baselines})
    found, won = ratios([k for k in timed if k.outcome] or timed, names)
    rows = [(f"fast_{p:g}", *(_share(sum(s > p for s in won[n]), len(found[n])) for n in names)) for p in FAST]
    rows.append(("tie", *(_share(len(found[n]) - len(won[n]), len(found[n])) for n in names)))
    rows += [
        (what, *(f"{mean(found[n]):.2f}×" if found[n] else "none" for n in names))
        for what, mean in (("geometric mean", geometric_mean), ("median", statistics.median))
    ]
    what = "the best kernel found" if any(k.outcome for k in timed) else "the seed kernel: nothing was searched"
    head = ("kernel", "seed, μs", *(f"{n}, μs" for n in names), *(f"seed over {n}" for n in names))
    searched = [*(f"best over {n}" for n in names)] if any(k.outcome for k in timed) else []
    return [
        f"Beside PyTorch, measured afresh on the same GPU; fast_p is the share of kernels more than p times as "
        f"fast, of {what}. A tie, whose 95% interval includes 1, is not faster:\n",
        _table(("figure", *names), rows),
        _table((*head, *searched, "size"), [_times(k, names, bool(searched)) for k in timed]),
    ]


def _times(kernel: SuiteKernel, names: Sequence[str], searched: bool) -> tuple[str, ...]:
    known = [kernel.baselines[n] for n in names if n in kernel.baselines and not kernel.baselines[n].error]
    seed = f"{known[0].seed_us:.1f}" if known else "none"
    us, ratios, best = [], [], []
    for name in names:
        b, over = kernel.baselines.get(name), kernel.over(name)
        us.append("none" if b is None else _cell(b.error) if b.error else f"{b.us:.1f}")
        ratios.append("none" if b is None or b.error else f"{b.ratio:.2f}× [{b.ci95[0]:.2f}, {b.ci95[1]:.2f}]")
        best.append("none" if over is None else f"{over:.2f}×")
    return kernel.name, seed, *us, *ratios, *(best if searched else ()), kernel.note or "own"


def _figures(done: Sequence[SuiteKernel]) -> list[tuple[str, str]]:
    speedups = [k.speedup for k in done]
    gains = [s for s in speedups if s >= SUCCESS]
    candidates = sum(count(k) for k in done)
    right, valid = (sum(count(k, *verdicts) for k in done) for verdicts in (RIGHT, VALID))
    low, high = interval([[math.log(s)] for s in speedups])
    return [
        (f"success ≥ {SUCCESS}×", _share(len(gains), len(done))),
        *_certified(done),
        *_retimed(done),
        ("compiled: a candidate compiles and runs", _unless_unknown(done, "valid", _of(done, *VALID))),
        ("fast_0, correct: a candidate is right", _of(done, *RIGHT)),
        *((f"fast_{p:g}", _share(sum(s > p for s in speedups), len(done))) for p in FAST),
        (
            "geometric mean, failures as 1.0×",
            f"{geometric_mean(speedups):.2f}× [{math.exp(low):.2f}, {math.exp(high):.2f}]",
        ),
        ("median, failures as 1.0×", f"{statistics.median(speedups):.2f}×"),
        ("mean of successes", _mean_with_interval(gains) if gains else "none"),
        ("candidates that compile and run", _unless_unknown(done, "valid", _share(valid, candidates))),
        ("candidates that are right", _share(right, candidates)),
        ("candidates a kernel", f"{candidates / len(done):.1f}"),
        ("seconds of evaluation a kernel", f"{sum(k.outcome.seconds for k in done if k.outcome) / len(done):.1f}"),
        *_on_gpu(done),
        *_attained(done),
    ]


def _of(done: Sequence[SuiteKernel], *verdicts: str) -> str:
    """Returns the share of kernels with a candidate of one of these verdicts."""
    return _share(sum(count(k, *verdicts) > 0 for k in done), len(done))


def _certified(done: Sequence[SuiteKernel]) -> list[tuple[str, str]]:
    """Returns the line on certified successes; nothing without a GPU."""
    if not _on_gpu(done):
        return []
    certified = sum(k.outcome.certified >= SUCCESS for k in done if k.outcome)
    return [("success, certified", _unless_unknown(done, "certified", _share(certified, len(done))))]


def _retimed(done: Sequence[SuiteKernel]) -> list[tuple[str, str]]:
    """Returns the line on second timings, which are what speedups are of then; nothing without one."""
    again = [k.outcome for k in done if k.outcome and k.outcome.retimed is not None]
    if not again:
        return []
    ratio = geometric_mean([run.reported / run.best for run in again])
    return [("best timed again in a new process", f"{len(again)}/{len(done)}; {ratio:.3f} of the search's speedup")]


def _on_gpu(done: Sequence[SuiteKernel]) -> list[tuple[str, str]]:
    """Returns the line on seconds of a GPU; nothing without one."""
    spent = sum(k.outcome.gpu_spent for k in done if k.outcome)
    if not spent and not any("gpu_seconds" in k.unknown for k in done):
        return []
    return [("of these of a GPU", _unless_unknown(done, "gpu_seconds", f"{spent / len(done):.1f}"))]


def _attained(done: Sequence[SuiteKernel]) -> list[tuple[str, str]]:
    """Returns the line on the attainable speed; nothing if it is known of no kernel."""
    shares = [k.outcome.attained for k in done if k.outcome and k.outcome.attained is not None]
    if not shares:
        return []
    of = f" of {len(shares)} kernels" if len(shares) < len(done) else ""
    return [("share of the attainable speed, geometric mean", f"{geometric_mean(shares):.0%}{of}")]


def _unless_unknown(done: Sequence[SuiteKernel], figure: str, value: str) -> str:
    """`value`, or how many kernels lack what it is computed of."""
    lacking = sum(figure in k.unknown for k in done)
    if lacking:
        return f"unknown: an earlier version of evo did not store it for {lacking} of {len(done)} kernels"
    return value


_BY_BUDGET = ("candidates k", f"success ≥ {SUCCESS}×", "geometric mean", "pass@k", f"pass@k ≥ {SUCCESS}×")


def _by_candidates(done: Sequence[SuiteKernel]) -> list[str]:
    """Returns the table by number of candidates; none if runs end by GPU seconds, which curves count then."""
    if any(k.outcome.gpu_seconds is not None for k in done if k.outcome):
        return []
    return [
        "By number of candidates: what the search had after so many, and pass@k, the chance that so many drawn "
        "from all of a kernel hold one that is right, or that is a success:\n",
        _table(_BY_BUDGET, _by_budget(done)),
    ]


def _by_budget(done: Sequence[SuiteKernel]) -> list[tuple[str, str, str, str, str]]:
    """Returns the rows after 1, 2, 4, ... candidates, and after all."""
    runs = [(k.outcome, count(k), count(k, *RIGHT)) for k in done if k.outcome]
    budget = max(run.budget for run, _, _ in runs)
    rows = []
    for k in [*(1 << i for i in range(budget.bit_length()) if 1 << i < budget), budget]:
        best = [run.curve[min(k, run.budget) - 1] for run, _, _ in runs]
        right = [pass_at(min(k, n), found, n) for _, n, found in runs if n]
        faster = [pass_at(min(k, n), run.successes, n) for run, n, _ in runs if n]
        gains = _share(sum(b >= SUCCESS for b in best), len(best))
        known = not any("successes" in kernel.unknown for kernel in done)
        share = _mean_share(faster) if known else "unknown"
        rows.append((str(k), gains, f"{geometric_mean(best):.2f}×", _mean_share(right), share))
    return rows


def _mean_with_interval(speedups: Sequence[float]) -> str:
    low, high = interval([[s] for s in speedups])
    return f"{sum(speedups) / len(speedups):.2f}× [{low:.2f}, {high:.2f}]"


def _mean_share(shares: Sequence[float]) -> str:
    return f"{sum(shares) / len(shares):.0%}" if shares else "none"


def _quarters(done: Sequence[SuiteKernel]) -> list[tuple[str, str, str, str, str]]:
    ordered = sorted(done, key=lambda k: (k.lines, k.name))
    bounds = [round(i * len(ordered) / 4) for i in range(5)]
    rows = []
    for number, (start, end) in enumerate(itertools.pairwise(bounds), 1):
        part = ordered[start:end]
        if part:
            gains = sum(k.speedup >= SUCCESS for k in part)
            mean = geometric_mean([k.speedup for k in part])
            lines = f"{part[0].lines} to {part[-1].lines}"
            rows.append((f"Q{number}", lines, str(len(part)), _share(gains, len(part)), f"{mean:.2f}×"))
    return rows


def _row(kernel: SuiteKernel, attained: bool) -> tuple[str, ...]:
    assert kernel.outcome is not None  # only those are listed
    low, high = kernel.outcome.reported_ci95
    within = "no gain" if kernel.speedup == 1 else f"[{low:.2f}, {high:.2f}]"
    certified = f"{kernel.outcome.certified:.2f}×" if kernel.outcome.certified > 1 else ""
    certified = "unknown" if "certified" in kernel.unknown else certified
    share = kernel.outcome.attained
    of = ["unknown" if share is None else f"{share:.0%}"] if attained else []
    return kernel.name, str(kernel.lines), f"{kernel.speedup:.2f}×", within, certified, *of, str(count(kernel))


def _fastest_first(done: Sequence[SuiteKernel]) -> list[SuiteKernel]:
    return sorted(done, key=lambda k: (-k.speedup, k.name))


def count(kernel: SuiteKernel, *verdicts: str) -> int:
    """Returns how many candidates were evaluated (with one of `verdicts`, if named), without the seed."""
    assert kernel.outcome is not None
    found = kernel.outcome.verdicts
    return sum(n for v, n in found.items() if not verdicts or v in verdicts) - 1


def _share(count: int, of: int) -> str:
    if not of:
        return "none"
    low, high = share_interval(count, of)
    return f"{count}/{of} = {count / of:.0%} [{low:.0%}, {high:.0%}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())

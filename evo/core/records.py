"""Defines the records of a search: frozen, and checked for consistency.

Nothing here imports torch, triton or any other heavy package: the command line, the store and every report read these
records without paying for a compiler.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import io
import json
import math
import re
import statistics
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evo.core import syntax


class Verdict(enum.StrEnum):
    """The result of a candidate."""

    REJECTED = "rejected"  # a static rule, or work delegated away from the candidate's own kernels.
    COMPILE_ERROR = "compile_error"  # syntax, import or Triton compilation failed
    UNSUPPORTED = "unsupported"  # correct perhaps, but it cannot be recorded (needs a computed value on the host)
    RUNTIME_ERROR = "runtime_error"  # host code or kernel raised or crashed
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"  # host memory limit, or more registers/shared memory than the device has
    WRONG = "wrong"
    SLOW = "slow"  # too slow at a first look for the search to go on with; not evaluated all the way
    DUPLICATE = "duplicate"  # the same machine code, grids and arguments in all that is timed as one that is ok
    INFRASTRUCTURE = "infrastructure"  # the evaluator failed, not the candidate
    OK = "ok"

    @property
    def rank(self) -> int:
        """The progress of a candidate with this verdict, from 0 to 5; not a score.

        0: infrastructure (nothing is known); 1: rejected; 2: compile_error, unsupported; 3: out_of_memory,
        runtime_error, timeout, slow (its results were not fully checked); 4: wrong; 5: duplicate, ok.
        """
        return _RANK[self]


_RANK = {
    Verdict.INFRASTRUCTURE: 0,
    Verdict.REJECTED: 1,
    Verdict.COMPILE_ERROR: 2,
    Verdict.UNSUPPORTED: 2,
    Verdict.OUT_OF_MEMORY: 3,
    Verdict.RUNTIME_ERROR: 3,
    Verdict.TIMEOUT: 3,
    Verdict.SLOW: 3,
    Verdict.WRONG: 4,
    Verdict.DUPLICATE: 5,
    Verdict.OK: 5,
}


class StopReason(enum.StrEnum):
    """Why a run stopped.  The value is the text that a run folder stores."""

    BUDGET = "budget spent"
    EXHAUSTED = "search space exhausted"
    STRATEGY = "the strategy ended the search"  # a strategy may store a text of its own instead
    LIMIT = "limit on tokens or dollars reached"
    ATTAINABLE = "the best kernel is as fast as attainable"
    CAMPAIGN_LIMIT = "limit of the campaign reached"
    INTERRUPTED = "interrupted"
    SILENT = "no model answers"
    # If only a part of the run was asked for:
    PROPOSED = "proposed"
    ALL_PROPOSED = "all of the budget is proposed"
    NOTHING_NEW = "nothing new can be made of what is known"
    NOTHING_PENDING = "nothing is pending"

    @classmethod
    def parse(cls, text: str) -> StopReason:
        """Return the reason that `text` stands for in a run folder: STRATEGY if it is a strategy's own text."""
        try:
            return cls(text)
        except ValueError:
            return cls.STRATEGY

    @property
    def final(self) -> bool:
        """Whether the run came to its end; if not, there was more to do."""
        ends = (StopReason.BUDGET, StopReason.EXHAUSTED, StopReason.STRATEGY, StopReason.LIMIT, StopReason.ATTAINABLE)
        return self in ends


# The stages at which a candidate can end.  "answer": a language model's answer without a new source.  "look": a first
# look at the tune cases found it too slow.  "verify": without a GPU, after the estimate; with one, "time" verifies and
# times.  A candidate that ended after "compile" was compiled.
STAGES = ("answer", "gate", "record", "compile", "screen", "look", "verify", "estimate", "time", "certify", "done")


@dataclass(frozen=True)
class Case:
    """One input size of a task.

    `axes` are the sizes on the target GPU; `cpu_axes` replaces them if the case is executed without one (Triton's
    interpreter is slow, so a big case names smaller sizes).  Tune cases guide the search; holdout cases only verify.
    `weight` is the part of a case in the speedup, relative to those of the others: for example its share of GPU time.
    """

    name: str
    axes: Mapping[str, int]
    dtype: str = "float32"
    role: str = "tune"
    cpu_axes: Mapping[str, int] | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)) or not 0 < self.weight < math.inf:
            raise ValueError(f"case {self.name!r}: weight must be a positive number, got {self.weight!r}")
        if self.role not in ("tune", "holdout"):
            raise ValueError(f"case {self.name!r}: role must be 'tune' or 'holdout', got {self.role!r}")
        for label, axes in (("axes", self.axes), ("cpu_axes", self.cpu_axes or {})):
            bad = {k: v for k, v in axes.items() if not isinstance(v, int) or isinstance(v, bool) or v < 0}
            if bad:
                raise ValueError(f"case {self.name!r}: {label} must be non-negative integers, got {bad}")
        if self.cpu_axes is not None and set(self.cpu_axes) != set(self.axes):
            raise ValueError(
                f"case {self.name!r}: cpu_axes must name the same axes as axes "
                f"({sorted(self.axes)}), got {sorted(self.cpu_axes)}"
            )

    def on_cpu(self) -> Case:
        """Returns the same case at its size without a GPU."""
        return self if self.cpu_axes is None else dataclasses.replace(self, axes=self.cpu_axes, cpu_axes=None)


# Lines that do not end at "\n", escapes, and f-strings with code in them: only tokens distinguish these.
_TRICKY = re.compile("[\\\\\0\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]|(?<!\\w)[rR]?[fF][rR]?[\"']")
_STRING_OR_COMMENT = re.compile("\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*", re.DOTALL)


@functools.lru_cache(maxsize=128)  # a source is named when it is drafted, screened, proposed and read again
def candidate_id(source: str) -> str:
    """16 hex digits of the source without comments, blank lines and trailing space: the name of a candidate.

    Of the text, not of its tokens: those differ between versions of Python.
    """
    text = _bare_at_a_glance(source)
    if text is None:
        text = _bare(source)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _bare(source: str) -> str:
    """Returns the source without comments, blank lines and trailing space; all of it if it is not Python."""
    lines = source.splitlines()
    ends: dict[int, int] = {}  # row of a comment or of the end of a line -> column at which its code ends
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE):
                row, column = token.start
                ends[row] = min(column, ends.get(row, column))
    except (tokenize.TokenError, SyntaxError):
        return source
    code = [line[: ends[row]].rstrip() if row in ends else line for row, line in enumerate(lines, 1)]
    return "\n".join(line for row, line in enumerate(code, 1) if line or row not in ends)


def _bare_at_a_glance(source: str) -> str | None:
    """Returns the same without Python's slow tokenizer, for most kernels; None for all others."""
    if _TRICKY.search(source):
        return None
    try:
        syntax.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    texts: list[str] = []  # strings of several lines, whose lines are left as they are

    def replaced(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] == "#":
            return ""
        if "\n" not in found:
            return found
        texts.append(found)
        return "\0"

    lines = _STRING_OR_COMMENT.sub(replaced, source).split("\n")
    kept = "\n".join(filter(None, map(str.rstrip, lines)))
    return re.sub("\0", lambda _: texts.pop(0), kept) if texts else kept


@dataclass(frozen=True)
class OperatorRef:
    """An operator and the model that it asks, written "mutate@gpt"; without a model ("params") it asks none."""

    name: str
    model: str | None = None

    @classmethod
    def parse(cls, text: str) -> OperatorRef:
        """Return the operator that `text` names in the settings, proposals and calls of a run."""
        name, at, model = text.partition("@")
        return cls(name, model if at else None)

    @property
    def asks(self) -> bool:
        """Whether it asks a model."""
        return self.model is not None

    def __str__(self) -> str:
        return self.name if self.model is None else f"{self.name}@{self.model}"


# Operators of trial 0: the seed kernel of a task, or the call of PyTorch that a task without one is timed against.
SEED_OPERATOR, BASELINE_OPERATOR = "seed", "baseline"
FIRST_OPERATORS = (SEED_OPERATOR, BASELINE_OPERATOR)


@dataclass(frozen=True)
class Candidate:
    """A kernel source.  Sources that differ in comments and layout only are the same candidate."""

    source: str
    id: str = ""

    def __post_init__(self) -> None:
        expected = candidate_id(self.source)
        if self.id not in ("", expected):
            raise ValueError(f"candidate id {self.id!r} is not that of its source ({expected!r})")
        object.__setattr__(self, "id", expected)


@dataclass(frozen=True)
class Bar:
    """Speedups over the baseline: a right candidate below all of them is of no use to the search that set the bar.

    It would be neither a parent nor the best.  `speedup` is over all tune cases, `per_case` of single ones.
    """

    speedup: float
    per_case: Mapping[str, float] = field(default_factory=dict)

    def is_above(self, timings: Sequence[Timing]) -> bool:
        """Returns whether the bar is above all that the candidate may reach.

        timings: of a first look, one for each tune case.  A measured case may reach the upper end of its interval.  The
        estimate of a case is what the search would compare.
        """
        reach = {t.case: t.ratio if t.estimated else t.ci95[1] for t in timings}
        weights = {t.case: t.weight for t in timings}
        return weighted_geometric_mean(list(reach.values()), list(weights.values())) < self.speedup and all(
            reach[case] < least for case, least in self.per_case.items()
        )

    def __str__(self) -> str:
        return f"{self.speedup:.2f}x"


@dataclass(frozen=True)
class Proposal:
    """A candidate to evaluate, with its origin.

    `seed` keys all randomness spent on it; `cost` counts what making it took (screenings, tokens, dollars, seconds).
    `bar`: what it must reach at a first look to be evaluated all the way; None: it is evaluated all the way.
    """

    index: int
    candidate: Candidate
    operator: str
    parents: tuple[int, ...] = ()  # indices of earlier proposals, the one that the source was made from first
    island: int = 0
    seed: int = 0
    note: str = ""  # what the operator did, one line
    cost: Mapping[str, float] = field(default_factory=dict)
    bar: Bar | None = None

    def __post_init__(self) -> None:
        if self.index < 0 or any(not 0 <= p < self.index for p in self.parents):
            raise ValueError(f"proposal {self.index}: parents must be earlier proposals, got {self.parents}")

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel; else it stands for the call of PyTorch that kernels are timed against."""
        return self.operator != BASELINE_OPERATOR


@dataclass(frozen=True)
class Finding:
    """One broken rule, with the line (1-based; 0 if no line applies)."""

    rule: str
    line: int
    message: str


@dataclass(frozen=True)
class Build:
    """Resources of one compiled kernel on the target."""

    kernel: str
    registers: int  # per thread
    spill_bytes: int  # local memory per thread used for spills
    shared_bytes: int  # per program
    num_warps: int
    occupancy: float  # resident warps / warp slots of a multiprocessor, 0..1
    sass_hash: str
    compile_s: float = 0.0
    # What its PTX has, by the names of `fitness.frontend.compile.ptx_features`; without zeros.  Earlier runs have none.
    instructions: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Check:
    """The outcome of verification: how far the worst case was from the oracle, against what was allowed."""

    cases: int  # (case, variant) pairs executed
    worst_case: str
    max_error: float  # error of the worst case in units of its budget (1.0 is the limit)
    budget: float  # absolute root-mean-square budget of the worst case
    own_share: float = 1.0  # least share of own kernels in the bytes of the outputs; the rest was left to operators


PYTORCH_IS_RIGHT = Check(0, "", 0.0, 0.0, own_share=0.0)  # of the call of PyTorch that says what is right

# The term of a measured timing that says whether its difference from the seed is significant: 1 or 0.
SIGNIFICANT = "counts"


@dataclass(frozen=True)
class Timing:
    """Time of one tune case, candidate against the seed kernel.

    `estimated` timings come from a model: `samples_us` and `baseline_us` then hold one number each, and `terms` the
    parts of the model in microseconds.  `weight` is that of the case.
    """

    case: str
    samples_us: tuple[float, ...]
    baseline_us: tuple[float, ...]
    ratio: float  # baseline / candidate: above 1 is faster than the seed
    ci95: tuple[float, float]
    estimated: bool
    terms: Mapping[str, float] = field(default_factory=dict)
    # The least time in which the GPU moves the bytes and does the operations of the case (docs/estimate.md): by what it
    # reached when it was measured, or for an estimate by its data sheet.  None if unknown, as in earlier runs.
    attainable_us: float | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.samples_us or not self.baseline_us:
            raise ValueError(f"timing of case {self.case!r} has no samples")
        if not (self.ratio > 0 and math.isfinite(self.ratio)):
            raise ValueError(f"timing of case {self.case!r}: ratio must be positive and finite, got {self.ratio}")

    @property
    def median_us(self) -> float:
        """The median time of the candidate, in microseconds."""
        return statistics.median(self.samples_us)

    @property
    def baseline_median_us(self) -> float:
        """The median time of the seed kernel, or of PyTorch, in microseconds."""
        return statistics.median(self.baseline_us)

    @property
    def attained(self) -> float | None:
        """The attainable time over the median time: 1 if nothing can be faster; None if it is not known."""
        return None if self.attainable_us is None else self.attainable_us / self.median_us

    @property
    def significant(self) -> bool:
        """Whether the difference from the seed kernel is beyond noise; always true of an estimate."""
        return self.estimated or bool(self.terms.get(SIGNIFICANT, 1.0))


# The key of an evaluation's environment that says which call of PyTorch was timed, in place of a kernel.
PYTORCH_CALL = "pytorch"


@dataclass(frozen=True)
class Evaluation:
    """The evaluator's result for one candidate.  The verdict decides which fields exist."""

    candidate: str  # id
    verdict: Verdict
    stage: str  # the stage that gave the verdict; "done" for OK
    message: str = ""
    findings: tuple[Finding, ...] = ()
    builds: tuple[Build, ...] = ()
    check: Check | None = None
    timings: tuple[Timing, ...] = ()
    look: tuple[Timing, ...] = ()  # of a candidate that ended at a first look: coarse, and of results not fully checked
    plan_hash: str = ""  # same hash, same work on the device in all that is timed
    duplicate_of: str = ""  # id of the candidate with the same plan
    frozen_source: str = ""  # the source with the chosen autotune configuration, if there were several
    # Wall time per stage; "wait": in the queue for the GPU.  It decides only when a budget of GPU seconds is spent.
    seconds: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"stage must be one of {', '.join(STAGES)}, got {self.stage!r}")
        if self.verdict is Verdict.OK:
            built = self.builds or self.pytorch
            if self.check is None or not self.timings or not built or self.stage != "done":
                raise ValueError("an OK evaluation needs builds, a check, timings and stage 'done'")
        else:
            if self.timings:
                raise ValueError(f"only OK evaluations carry timings, got {self.verdict}")
            if not self.message:
                raise ValueError(f"verdict {self.verdict} needs a message")
        if not (self.verdict is Verdict.SLOW) == bool(self.look) == (self.stage == "look"):
            raise ValueError("the times of a first look belong to SLOW at stage 'look', and only to it")
        if (self.verdict is Verdict.DUPLICATE) != bool(self.duplicate_of):
            raise ValueError("duplicate_of belongs to DUPLICATE, and only to it")

    @property
    def pytorch(self) -> bool:
        """Whether it is of the call of PyTorch that kernels are timed against, and of no kernel."""
        return PYTORCH_CALL in self.environment

    @property
    def estimated(self) -> bool:
        return any(t.estimated for t in self.timings)

    @property
    def whole(self) -> bool:
        """Whether it was taken all the way to its verdict; False if a first look ended it."""
        return self.verdict is not Verdict.SLOW

    @property
    def fitness(self) -> Fitness | None:
        """The speedup over the seed kernel, with its interval; None unless the verdict is OK."""
        return score(self)

    @property
    def attained(self) -> float | None:
        """Geometric mean over the tune cases of attainable time / time, by weight; None if one of them is not known."""
        known = [(t.attained, t.weight) for t in self.timings if t.attained is not None]
        return weighted_geometric_mean(*zip(*known, strict=True)) if known and len(known) == len(self.timings) else None

    @property
    def looked(self) -> Fitness | None:
        """The coarse speedup of a first look; None unless the verdict is SLOW."""
        return fitness_of(self.look) if self.look else None

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the tune cases of seed time / time; None unless the verdict is OK."""
        fitness = self.fitness
        return None if fitness is None else fitness.speedup


def score(evaluation: Evaluation) -> Fitness | None:
    """Returns the geometric mean over the tune cases of (seed time / candidate time); None unless the verdict is OK.

    Each case counts by its weight.  The interval is the geometric mean of the cases' interval ends.  It is wider than
    the mean's own interval if the cases err independently.  It is right if they err together, as cases timed by one
    model or on one device largely do.

    A measured case whose difference is not significant (the interval includes 1, or the ratio lies within the noise
    floor of the device) enters as ratio 1, with its interval widened to include 1.
    """
    return fitness_of(evaluation.timings) if evaluation.verdict is Verdict.OK else None


def fitness_of(timings: Sequence[Timing]) -> Fitness:
    """Returns the fitness of the timings of a candidate that is right."""
    cases = {t.case: _counted(t) for t in timings}
    ratios, lows, highs = zip(*cases.values(), strict=True)
    weights = list({t.case: t.weight for t in timings}.values())
    return Fitness(
        speedup=weighted_geometric_mean(ratios, weights),
        ci95=(weighted_geometric_mean(lows, weights), weighted_geometric_mean(highs, weights)),
        per_case={case: ratio for case, (ratio, _, _) in cases.items()},
        estimated=any(t.estimated for t in timings),
    )


def _counted(timing: Timing) -> tuple[float, float, float]:
    """Returns (ratio, low, high) of a case as it enters the mean."""
    low, high = timing.ci95
    if timing.significant:
        return timing.ratio, low, high
    return 1.0, min(low, 1.0), max(high, 1.0)


def weighted_geometric_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Returns the geometric mean of positive values, each with its weight."""
    total = math.fsum(w * math.log(v) for v, w in zip(values, weights, strict=True))
    return math.exp(total / math.fsum(weights))


@dataclass(frozen=True)
class Hint:
    """An action that a profile suggests.  Use and gain are counted under its id."""

    id: str
    action: str


# The source of a profile, the best first: hardware counters, measured times with compiled code, a model alone.
TIERS = ("ncu", "counters-free", "estimate")
# What limits a kernel: the rate of a memory, the rate of the arithmetic units, waiting, a device that is not filled, or
# the start of kernels and programs.
BOTTLENECKS = ("memory", "compute", "latency", "parallelism", "overhead")


@dataclass(frozen=True)
class Profile:
    """A digest of what limits a candidate.

    `numbers` are the few that show it, by a name with its unit; `before` the same ones of its parent, if known.
    `metrics` has everything that was read, by the same names.
    """

    tier: str  # one of TIERS
    bottleneck: str  # one of BOTTLENECKS
    reason: str  # one sentence
    numbers: Mapping[str, float]
    roofline: float | None = None  # least possible time / time, 0..1
    before: Mapping[str, float] = field(default_factory=dict)
    hints: tuple[Hint, ...] = ()
    case: str = ""  # the size that was looked at
    kernel: str = ""  # the one that takes the most time, to which the resources belong
    metrics: Mapping[str, float] = field(default_factory=dict)
    # Microseconds by kernel in `case`: counted in tier "ncu", else the model's.  Earlier runs have none.
    kernels: Mapping[str, float] = field(default_factory=dict)
    fallback: str = ""  # why a better tier was not used

    def __post_init__(self) -> None:
        for name, value, valid in (("tier", self.tier, TIERS), ("bottleneck", self.bottleneck, BOTTLENECKS)):
            if value not in valid:
                raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}")

    def beside(self, earlier: Profile | None) -> Profile:
        """Returns this profile with the numbers of an earlier one, if tier and case are the same."""
        if earlier is None or (earlier.tier, earlier.case) != (self.tier, self.case):
            return self
        before = {name: earlier.metrics[name] for name in self.numbers if name in earlier.metrics}
        return dataclasses.replace(self, before=before)


@dataclass(frozen=True)
class SeedEstimate:
    """What the compiler and a model of the target say of the seed kernel before anything is evaluated."""

    builds: tuple[Build, ...]
    timings: tuple[Timing, ...]  # of each tune case, estimated
    profile: Profile


@dataclass(frozen=True)
class Evidence:
    """One check of a certificate.

    outcome: "passed", "failed", "noted" (it found something that is not held against the candidate) or "not run", with
    the reason as its detail.
    """

    what: str
    outcome: str
    detail: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome not in ("passed", "failed", "noted", "not run"):
            raise ValueError(f"outcome must be passed, failed, noted or not run, got {self.outcome!r}")


# Of an evaluator's environment: `Target.spec` of the GPU that measures; missing if it is the one of the target's name.
GPU_FACTS = "gpu_facts"
CERTIFICATE, PASSED = "certificate", "eager: passed"  # what a new champion's says, in its evaluation's environment


@dataclass(frozen=True)
class Certificate:
    """The result of running a candidate's own Python on a GPU, in a process of its own.

    verdict: OK if it did what was verified; else that of the first check that failed; INFRASTRUCTURE if it could not be
    tried, which says nothing about the candidate.
    """

    candidate: str  # id of the source that was run
    verdict: Verdict
    message: str = ""
    checks: tuple[Evidence, ...] = ()
    layers: tuple[str, ...] = ()  # of the sandbox it ran in
    seed: str = ""  # keys its inputs

    @property
    def summary(self) -> str:
        """One line: the verdict and its checks."""
        if self.verdict is Verdict.INFRASTRUCTURE:
            return f"nothing was certified on a GPU: {self.message}"
        counts = Counter(check.outcome for check in self.checks)
        found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        return f"passed ({found})" if self.verdict is Verdict.OK else f"{self.verdict}: {self.message} ({found})"


@dataclass(frozen=True)
class Fitness:
    """Speedup over the seed: the geometric mean over the tune cases, with its 95% interval."""

    speedup: float
    ci95: tuple[float, float]
    per_case: Mapping[str, float]  # speedup of each tune case
    estimated: bool  # whether a model of the target computed it, and no GPU measured it

    def __str__(self) -> str:
        """E.g. "3.42x [3.01, 3.88] estimated"; the last word is missing if a GPU measured it."""
        low, high = self.ci95
        return f"{self.speedup:.2f}x [{low:.2f}, {high:.2f}]{' estimated' if self.estimated else ''}"

    @property
    def kind(self) -> str:
        """What it rests on: "measured" or "estimated"."""
        return "estimated" if self.estimated else "measured"


def surely_faster(speedup: float | None, low: float, other: float | None, high: float) -> bool | None:
    """Returns whether a speedup is above another one beyond their 95% intervals.

    speedup, low: of the one, with the lower end of its interval; other, high: of the other, with the upper end.  Both
    are over the same seed kernel, with independent errors: the logarithm of their ratio is compared with the root of
    the sum of the squared half widths.  None if there is no speedup to compare.
    """
    if speedup is None or other is None:
        return None
    return low > 0 and math.log(speedup / other) > math.hypot(math.log(speedup / low), math.log(high / other))


@dataclass(frozen=True)
class Trial:
    """A proposal with its evaluation; fitness only if the verdict is OK."""

    proposal: Proposal
    evaluation: Evaluation
    fitness: Fitness | None = None

    def __post_init__(self) -> None:
        if (self.fitness is not None) != (self.evaluation.verdict is Verdict.OK):
            raise ValueError(f"fitness exists for OK only, verdict is {self.evaluation.verdict}")
        if self.evaluation.candidate != self.proposal.candidate.id:
            raise ValueError("the evaluation is of another candidate")

    @property
    def index(self) -> int:
        return self.proposal.index


def certificate_from_dict(raw: Mapping[str, Any]) -> Certificate:
    """Returns the record of `dataclasses.asdict`, also after a round trip through JSON."""
    checks = tuple(Evidence(**check) for check in raw["checks"])
    return Certificate(**{**raw, "verdict": Verdict(raw["verdict"]), "checks": checks, "layers": tuple(raw["layers"])})


def evaluation_to_json(evaluation: Evaluation) -> str:
    return json.dumps(evaluation, sort_keys=True, default=_fields)


def bar_to_json(bar: Bar | None) -> str | None:
    return None if bar is None else json.dumps(bar, default=_fields)


def bar_from_json(text: str | None) -> Bar | None:
    return None if text is None else Bar(**json.loads(text))


def seed_estimate_to_json(estimate: SeedEstimate) -> str:
    return json.dumps(estimate, default=_fields)  # in order, as a profile


def _fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a record, or of a mapping that is not a dict, without copying every number."""
    return vars(value) if dataclasses.is_dataclass(value) else dict(value)


def evaluation_from_json(text: str) -> Evaluation:
    raw = json.loads(text)
    if raw.pop("eager", False):  # a key of earlier versions
        raise ValueError("evaluated without a recorded plan")
    raw["verdict"] = Verdict(raw["verdict"])
    raw["findings"] = tuple(Finding(**f) for f in raw["findings"])
    raw["check"] = Check(**raw["check"]) if raw["check"] else None
    raw["look"] = _timings(raw.get("look", ()))  # earlier versions evaluated all candidates all the way
    return Evaluation(**raw | _builds_and_timings(raw))


def seed_estimate_from_json(text: str) -> SeedEstimate:
    raw = json.loads(text)
    return SeedEstimate(**_builds_and_timings(raw), profile=_profile(raw["profile"]))


def _builds_and_timings(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"builds": tuple(Build(**b) for b in raw["builds"]), "timings": _timings(raw["timings"])}


def _timings(raw: Sequence[Mapping[str, Any]]) -> tuple[Timing, ...]:
    lists = ("samples_us", "baseline_us", "ci95")
    return tuple(Timing(**{**t, **{k: tuple(t[k]) for k in lists}}) for t in raw)


def profile_to_json(profile: Profile) -> str:
    return json.dumps(profile, default=_fields)  # in order: the most telling number is the first


def profile_from_json(text: str) -> Profile:
    return _profile(json.loads(text))


def _profile(raw: Mapping[str, Any]) -> Profile:
    return Profile(**{**raw, "hints": tuple(Hint(**h) for h in raw["hints"])})

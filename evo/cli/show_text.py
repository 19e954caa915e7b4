"""Prints a run or one of its trials for `evo show`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from evo.core.baselines import BaselineKind
from evo.core.records import FIRST_OPERATORS, Candidate, Evaluation, OperatorRef, Profile, Proposal, Timing, Trial
from evo.core.text import of_attainable
from evo.search.termination import spent_budget
from evo.storage.best import best_source, diff, read_result
from evo.storage.queries import ModelUse, OperatorCredit, RunReader


def show_run(run: RunReader, console: Console) -> None:
    """Prints settings, state, verdicts, operators, the lineage of the best, versions and protections."""
    config = run.info.config
    say = _printer(console)
    say(f"{run.folder}: task {config.task}, target {config.target}, {config.strategy}, seed {config.seed}", "bold")
    for plugin in config.plugins:
        say(f"plug-in: {plugin.noun}, hash {plugin.hash}, {plugin.origin}")
    verdicts = run.verdicts()
    spent, pending = run.spent(), len(run.pending())
    say(f"{spent} of {config.budget} candidates evaluated, {pending} pending, {run.screen_count()} sources screened")
    if config.gpu_seconds is not None:
        say(f"{spent_budget(run, config).spent_gpu_s:.1f} of {config.gpu_seconds:g} GPU seconds spent")
    events = run.events()
    if events:
        kind, text, _ = events[-1]
        say(f"last event: {kind} ({text})")
    best = run.best()
    if best is not None and best.fitness is not None:
        attained = of_attainable(best.evaluation.attained)
        say(f"best: {best.fitness} {config.baseline_kind.compared}{attained}, trial {best.index}", "green")
    elif config.baseline_kind.pytorch:
        say(f"no right kernel yet; speedups are over {config.baseline_kind.text}", "yellow")
    result = read_result(run)
    if result is not None and result.has_kernel:
        say(f"written to best/: trial {result.best.index}, certificate: {result.certificate.summary}")
    _print_table(console, "verdicts", ("verdict", "trials"), verdicts.items())
    credit = [o for o in run.operators() if o.name not in FIRST_OPERATORS]
    rows = [(o.name, o.trials, o.ok, o.improved, _times(o.best), *_price(o)) for o in credit]
    columns = ("operator", "trials", "ok", "beat all parents", "best", "tokens", "dollars")
    asks = any(OperatorRef.parse(o.name).asks for o in credit)
    _print_table(console, "operators", columns if asks else columns[:-2], rows if asks else [r[:-2] for r in rows])
    models = run.models()
    if models:
        _print_models(models, console)
        for name, error in run.first_failures().items():
            say(f"first failure of {name}: {error}", "yellow")
    hints = [(h.name, h.trials, h.ok, h.improved, _times(h.gain)) for h in run.hints()]
    if hints:
        _print_table(console, "hints followed", ("hint", "trials", "ok", "beat all parents", "mean gain"), hints)
    if best is not None:
        _print_lineage(run, best.index, console)
    _print_facts(console, "environment", {"versions": run.info.versions, **run.info.environment})


def show_trial(run: RunReader, index: int, console: Console) -> None:
    """Prints everything stored about one trial."""
    found = run.trial(index)
    proposal = found.proposal if isinstance(found, Trial) else found
    say = _printer(console)
    say(f"trial {index} of {run.folder}: candidate {proposal.candidate.id}", "bold")
    say(f"{proposal.operator}: {proposal.note}")
    parents = ", ".join(map(str, proposal.parents)) or "none"
    say(f"parents: {parents}; island {proposal.island}; seed {proposal.seed}; cost: {_pairs(proposal.cost) or 'none'}")
    if isinstance(found, Trial):
        _show_evaluation(found, run.info.config.baseline_kind, console)
    else:
        say("not evaluated yet", "yellow")
    for profile in run.profiles([index]).values():
        _print_profile(profile, console)
    source = best_source(found) if isinstance(found, Trial) else proposal.candidate.source
    frozen = isinstance(found, Trial) and found.evaluation.frozen_source
    console.rule("source" + (" (with the chosen autotune configuration)" if frozen else ""))
    _print_code(console, source, "python", line_numbers=True)
    _show_diff(run, proposal, console)
    _show_call(run, index, console)


def _show_evaluation(trial: Trial, baseline: BaselineKind, console: Console) -> None:
    evaluation = trial.evaluation
    say = _printer(console)
    say(f"verdict: {evaluation.verdict} at stage {evaluation.stage}", "green" if trial.fitness else "yellow")
    if trial.fitness:
        say(f"speedup: {trial.fitness} {baseline.compared}{of_attainable(evaluation.attained)}", "green")
    if evaluation.message:
        say(f"message: {evaluation.message}")
    if evaluation.duplicate_of:
        say(f"duplicate of candidate {evaluation.duplicate_of}")
    if evaluation.findings:
        rows = ((f.rule, f.line or "", f.message) for f in evaluation.findings)
        _print_table(console, "findings", ("rule", "line", "message"), rows)
    if evaluation.check and evaluation.check.cases:
        check = evaluation.check
        say(
            f"verified on {check.cases} inputs; worst {check.worst_case}: {check.max_error:.3g} of its error budget "
            f"(rms {check.budget:.3g})"
        )
        if check.own_share < 1:
            say(f"own kernels wrote {check.own_share:.0%} of the outputs, operators the rest")
    if evaluation.builds:
        _print_builds(evaluation, console)
    for timing in evaluation.timings:
        _print_timing(timing, baseline, console)
    _print_facts(console, "seconds by stage", {k: f"{v:.3f}" for k, v in evaluation.seconds.items()})
    _print_facts(console, "environment", evaluation.environment)


def _print_builds(evaluation: Evaluation, console: Console) -> None:
    rows = (
        (b.kernel, b.registers, b.spill_bytes, b.shared_bytes, b.num_warps, f"{b.occupancy:.0%}", b.sass_hash[:12])
        for b in evaluation.builds
    )
    columns = ("kernel", "registers", "spill bytes", "shared bytes", "warps", "occupancy", "machine code")
    _print_table(console, "builds", columns, rows)


def _print_timing(timing: Timing, baseline: BaselineKind, console: Console) -> None:
    ours, seed = timing.median_us, timing.baseline_median_us
    low, high = timing.ci95
    kind = "estimated" if timing.estimated else "measured"
    name = baseline.text if baseline.pytorch else "seed"
    title = (
        f"case {timing.case}: {ours:.2f} µs, {name} {seed:.2f} µs, {timing.ratio:.2f}x [{low:.2f}, {high:.2f}] {kind}"
    )
    if timing.attainable_us is not None:
        title += f"; attainable {timing.attainable_us:.2f} µs{of_attainable(timing.attained)}"
    rows = ((name, f"{us:.3f}") for name, us in sorted(timing.terms.items(), key=lambda item: -item[1]))
    _print_table(console, title, ("term", "µs" if timing.estimated else "value"), rows)


def _print_profile(profile: Profile, console: Console) -> None:
    say = _printer(console)
    say(f"limited by {profile.bottleneck}: {profile.reason}", "bold")
    if profile.fallback:
        say(f"profile of tier {profile.tier}, as {profile.fallback}")
    share = {} if profile.roofline is None else {"share of the roofline reached, %": 100 * profile.roofline}
    numbers = {**profile.numbers, **share}
    rows = (
        (name, f"{v:.3g}", f"{profile.before[name]:.3g}" if name in profile.before else "")
        for name, v in numbers.items()
    )
    _print_table(console, f"profile ({profile.tier}, kernel {profile.kernel})", ("number", "now", "parent"), rows)
    if profile.hints:
        _print_table(console, "hints", ("hint", "action"), ((h.id, h.action) for h in profile.hints))


def _print_lineage(run: RunReader, index: int, console: Console) -> None:
    line = run.lineage(index)
    rows = []
    for trial in reversed(line):
        speedup = _times(trial.fitness.speedup if trial.fitness else None)
        also = ", ".join(map(str, trial.proposal.parents[1:]))
        rows.append((trial.index, trial.proposal.operator, speedup, trial.proposal.note, also))
    kinds = {t.fitness.kind for t in line if t.fitness} - {"measured"}
    speedup_column = f"speedup ({', '.join(sorted(kinds))})" if kinds else "speedup"
    columns = ("trial", "operator", speedup_column, "note", "other parents")
    _print_table(console, "lineage of the best", columns, rows)


def _print_models(models: Sequence[ModelUse], console: Console) -> None:
    columns = ("model", "calls", "answers", "failed", "tokens in", "tokens out", "dollars", "seconds an answer")
    rows = (
        (m.name, m.calls, m.answers, m.failed, _known(m.tokens_in, "d"), _known(m.tokens_out, "d"),
         _known(m.usd, ".4f"), _known(m.seconds, ".1f"))
        for m in models
    )  # fmt: skip
    _print_table(console, "models", columns, rows)


def _show_call(run: RunReader, index: int, console: Console) -> None:
    """Prints the model's answer that a trial was made from."""
    call = run.call_of(index)
    if call is None:
        return
    tokens = f"{_known(call['tokens_in'], 'd')} tokens in, {_known(call['tokens_out'], 'd')} out"
    console.rule(f"call {call['call']} of {call['model']}: {tokens}, {_known(call['usd'], '.4f')} dollars")
    _printer(console)(f"prompt {call['prompt_hash']}; finish: {call['finish']}; attempts: {call['attempts']}")
    _print_code(console, call["answer"], "markdown")
    if call["answered_source"] is not None:
        _show_tuning(run, index, call["answered_source"], console)


def _show_tuning(run: RunReader, index: int, answered: str, console: Console) -> None:
    """Prints what was changed of an answer before it was judged, with the estimates of both if there are."""
    found = run.trial(index)
    judged = (found.proposal if isinstance(found, Trial) else found).candidate
    before = Candidate(answered)
    speedups = run.screened([before.id, judged.id])
    text = " and ".join(f"{_times(speedups.get(c)) or 'not estimated'} {what}" for c, what in (
        (before.id, "as answered"), (judged.id, "as judged"),
    ))  # fmt: skip
    console.rule("parameters that were tuned before the answer was judged")
    _printer(console)(f"estimated: {text}")
    _print_code(console, diff(answered, judged.source, "as answered", "as judged"), "diff")


def _price(credit: OperatorCredit) -> tuple[str, str]:
    """Tokens and dollars of an operator's answers."""
    return (_known(credit.tokens, "d"), _known(credit.usd, ".4f")) if OperatorRef.parse(credit.name).asks else ("", "")


def _known(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def _show_diff(run: RunReader, proposal: Proposal, console: Console) -> None:
    if not proposal.parents:
        return
    bases = {proposal.parents[0]: f"parent {proposal.parents[0]}"}
    if not run.info.config.baseline_kind.pytorch:
        bases[0] = "the seed"
    for base, name in bases.items():
        other = run.trial(base)
        old = (other.proposal if isinstance(other, Trial) else other).candidate.source
        patch = diff(old, proposal.candidate.source, f"trial {base}", f"trial {proposal.index}")
        console.rule(f"diff to {name}")
        _print_code(console, patch, "diff")


def _print_code(console: Console, text: str, language: str, *, line_numbers: bool = False) -> None:
    """Prints code in colour on a terminal, and unchanged elsewhere, to be copied or piped."""
    if console.is_terminal:
        console.print(Syntax(text, language, line_numbers=line_numbers, word_wrap=True, background_color="default"))
    else:
        console.print(Text(text), soft_wrap=True)


# --- tables ----------------------------------------------------------------------------------------------------------


def _printer(console: Console) -> Any:
    return lambda text, style="": console.print(Text(text, style=style), soft_wrap=True)


def _print_table(console: Console, title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print()
    _printer(console)(title, "bold")  # not the table's own title, which is cut to the table's width
    console.print(table)


def _print_facts(console: Console, title: str, facts: Mapping[str, Any]) -> None:
    """A table of names and values."""
    rows = ((k, _plain(v)) for k, v in facts.items())
    _print_table(console, title, ("name", "value"), rows)


def _pairs(mapping: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}: {v:g}" if isinstance(v, float) else f"{k}: {v}" for k, v in mapping.items())


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return _pairs(value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _times(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.2f}x"

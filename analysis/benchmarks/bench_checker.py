"""Measures how many wrong kernels the evaluator refuses, and how many right ones it accepts.

    python -m analysis.benchmarks.bench_checker --out DIR [--tritonbench PATH] [--kernelbench PATH] [--device cuda] …

It makes mutants and right rewrites (`mutants.py`) of right kernels (`kernel_sets.py`), and finds inputs at which a
mutant is wrong without the evaluator (`witnesses.py`).  Then the evaluator evaluates every mutant seen to be wrong and
every rewrite seen to be right.  So do the checks of KernelBench and TritonBench-G, by their rules (`peer_checks.py`).
DIR keeps the results; the same command continues from there.  `--device none` executes nothing and prints the table of
what is there.

Device "interpret" executes kernels in Triton's interpreter and evaluates them without a GPU, "cuda" does both on a GPU.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from analysis.benchmarks import kernel_sets, peer_checks
from analysis.benchmarks.mutants import PLAIN, RightKernel, Variant, right_kernels, wrong_kernels
from analysis.benchmarks.witnesses import DEVICES, PLACES_OF, WRONG, Answer, gpus_here, observe
from evo.core.errors import EvoError

# Of each task with kernels of a group.
MUTANTS: Mapping[str, int] = {"built-in": 45, "tritonbench-g": 20, "kernelbench": 20, "answers": 20}
REWRITES: Mapping[str, int] = {"built-in": 10, "tritonbench-g": 2, "kernelbench": 2, "answers": 2}
EVALUATORS = {"interpret": "cpu", "cuda": "gpu"}
# The class of a mutant is the first place at which it is wrong: each evaluator's own sizes come first.
CLASSES = {"cpu": ("cpu", "gpu", "elsewhere"), "gpu": ("gpu", "cpu", "elsewhere")}
CUDA_PROCESSES = 12  # that share the memory of a GPU
ACCEPTED, NOT_COMPILED = "ok", "compile_error"
NOT_JUDGED = ("infrastructure", "not asked")

Verdicts = Mapping[str, Mapping[str, Any]]  # by id: verdict, stage, message


# --- what is kept ----------------------------------------------------------------------------------------------------


class Folder:
    """The files of one benchmark: the kernels, what was seen of them, and what the evaluators say."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def witnesses(self, device: str) -> Path:
        return self.root / f"witnesses-{device}.jsonl"

    def verdicts(self, evaluator: str, task: str = "all") -> Path:
        return self.root / f"verdicts-{evaluator}-{task}.jsonl"

    def tasks(self, group: str, device: str = "") -> Path:
        """Returns the folder of the tasks of a group; of TritonBench-G they have other sizes on a GPU."""
        return self.root / "tasks" / f"{group}-{device}".rstrip("-")

    def all_witnesses(self) -> dict[str, dict[str, Answer]]:
        """Returns the witnesses by kernel and place."""
        found: dict[str, dict[str, Answer]] = defaultdict(dict)
        for device in DEVICES:
            for line in read(self.witnesses(device)):
                found[line["id"]][line["place"]] = line
        return found

    def all_verdicts(self, evaluator: str) -> dict[str, dict[str, Any]]:
        paths = sorted(self.root.glob(f"verdicts-{evaluator}-*.jsonl"))
        return {line["id"]: line for path in paths for line in read(path)}


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines, without one that was cut off; [] if it is not there."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds one line; behind one that was cut off, it begins a new one."""
    data = (json.dumps(line) + "\n").encode()
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                data = b"\n" + data
        file.write(data)


# --- witnesses -------------------------------------------------------------------------------------------------------


def find_witnesses(folder: Folder, variants: Sequence[Variant], device: str, jobs: int) -> None:
    """Executes every kernel at the places of a device, one place after the other, unless that was done.

    What is wrong at one of them is not executed at the next, on another device neither; what is invalid is not
    executed at the next of the same device.
    """
    path = folder.witnesses(device)
    processes = processes_on(device, jobs)
    for place in PLACES_OF[device]:
        known = {line["id"] for line in read(path) if line["place"] == place or line["status"] == "invalid"}
        for other in DEVICES:
            known |= {line["id"] for line in read(folder.witnesses(other)) if line["status"] in WRONG}
        waiting = [(v.id, v.task, place, v.source) for v in variants if v.id not in known]
        done = Counter[str]()
        begin = time.perf_counter()

        def tell(answer: Answer, done: Counter[str] = done) -> None:
            append(path, answer)
            done[answer["status"]] += 1
            if sum(done.values()) % 100 == 0:
                say(f"  {dict(done)}")

        observe(waiting, device, processes, tell)
        say(f"{device}, {place}: executed {len(waiting)} in {time.perf_counter() - begin:.0f} s, {dict(done)}")


def processes_on(device: str, jobs: int) -> int:
    """Returns how many processes may execute kernels at once."""
    return min(jobs, CUDA_PROCESSES * len(gpus_here())) if device == "cuda" else jobs


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def state(answers: Mapping[str, Answer]) -> str:
    """Returns what the witnesses of all places say about a kernel.

    "wrong", "unclear", "outside" (it reads outside of all arrays, without an effect), "invalid", "unfinished", "right".
    """
    if "gpu" in answers and answers["gpu"]["status"] == "invalid":  # the interpreter takes more than the compiler
        return "invalid"
    if "gpu" in answers:  # and less: it has no libdevice
        answers = {place: answer for place, answer in answers.items() if answer["status"] != "invalid"}
    found = {answer["status"] for answer in answers.values()}
    if found & WRONG:
        return "wrong"
    for status, name in (("invalid", "invalid"), ("unclear", "unclear"), ("unfinished", "unfinished")):
        if status in found:
            return name
    if "outside-read" in found:
        return "outside"
    return "right" if found else "unfinished"


def witness_class(answers: Mapping[str, Answer], order: Sequence[str]) -> str:
    """The first place, in this order, at which it is wrong; "" if it is at none."""
    return next((place for place in order if place in answers and answers[place]["status"] in WRONG), "")


# --- verdicts --------------------------------------------------------------------------------------------------------


def find_verdicts(folder: Folder, variants: Sequence[Variant], evaluator: str, jobs: int) -> None:
    """Has every kernel evaluated, unless that was done; each task in a process of its own.

    The tasks share all GPUs.
    """
    known = folder.all_verdicts(evaluator)
    by_task: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for variant in variants:
        if variant.id not in known:
            by_task[variant.task].append((variant.id, variant.source))
    if not by_task:
        return
    # On one GPU one candidate is measured at a time, while others are compiled.
    processes = max(1, min(len(by_task), jobs if evaluator == "cpu" else jobs // 2))
    threads = max(1, jobs // processes)
    begin = time.perf_counter()
    gpus = itertools.cycle(gpus_here() if evaluator == "gpu" else [""])
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as pool:
        futures = {
            task: pool.submit(
                judge, task, evaluator, next(gpus), kernels, threads, folder.verdicts(evaluator, Path(task).name)
            )
            for task, kernels in sorted(by_task.items(), key=lambda item: -len(item[1]))
        }
        for task, future in futures.items():
            error = future.exception()  # a task that cannot be evaluated: its kernels count as not judged
            say(f"{evaluator}: {Path(task).name}, {f'{future.result():.0f} s' if error is None else error}")
    count = sum(map(len, by_task.values()))
    say(f"{evaluator}: judged {count} in {time.perf_counter() - begin:.0f} s")


def judge(task: str, evaluator: str, gpu: str, kernels: Sequence[tuple[str, str]], threads: int, path: Path) -> float:
    """Writes the verdicts on kernels of one task; the seconds that took."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # of this process, which has not used one yet
    from evo.core.records import Candidate
    from fitness.cpu_backend import CpuEvaluator
    from fitness.evaluator import TaskEvaluator
    from fitness.frontend.target import get_target
    from fitness.gpu_backend import GpuEvaluator
    from fitness.tasks.task import load_task

    begin = time.perf_counter()
    writing = threading.Lock()
    kind = CpuEvaluator if evaluator == "cpu" else GpuEvaluator
    with kind(load_task(task), get_target("sm_90")) as found:
        whole: TaskEvaluator = found
        whole.prepare()

        def one(kernel: tuple[str, str]) -> None:
            id, source = kernel
            said = whole.evaluate(Candidate(source), seed=0, known={})
            error = said.check.max_error if said.check else None
            with writing:
                append(
                    path,
                    {
                        "id": id,
                        "verdict": said.verdict.value,
                        "stage": said.stage,
                        "message": said.message[:500],
                        "error": error,
                        "seconds": round(math.fsum(said.seconds.values()), 3),
                    },
                )

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, kernels))
    return time.perf_counter() - begin


_RULE_VERDICTS = {"accepted": ACCEPTED, "refused": "wrong", "crash": "wrong", "unfinished": "timeout"}


def apply_rules(folder: Folder, variants: Sequence[Variant], device: str, jobs: int) -> None:
    """Has the checks of other benchmarks look at every kernel, unless that was done."""
    for rule in peer_checks.RULES:
        path = folder.verdicts(f"{rule}-{EVALUATORS[device]}")
        known = {line["id"] for line in read(path)}
        chosen = [v for v in variants if v.id not in known]
        if rule != peer_checks.KERNELBENCH:
            chosen = [v for v in chosen if v.group == "tritonbench-g"]

        def tell(answer: Answer, path: Path = path) -> None:
            verdict = _RULE_VERDICTS[answer["status"]]
            append(path, {"id": answer["id"], "verdict": verdict, "stage": "", "message": answer.get("message", "")})

        observe([(v.id, v.task, rule, v.source) for v in chosen], device, processes_on(device, jobs), tell)
        say(f"{rule}, {device}: {len(chosen)} kernels")


# --- tables ----------------------------------------------------------------------------------------------------------


def wilson(count: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    from scipy import stats

    if not of:
        return 0.0, 1.0
    low, high = stats.binomtest(count, of).proportion_ci(method="wilson")
    return float(low), float(high)


def share(count: int, of: int) -> str:
    """`count` of `of` with the share and its interval."""
    if not of:
        return "0/0"
    low, high = wilson(count, of)
    return f"{count}/{of} = {count / of:.1%} [{low:.1%}, {high:.1%}]"


@dataclass
class Tally:
    """Mutants of one row of a table."""

    refused: int = 0
    accepted: int = 0
    not_compiled: int = 0  # refused by the compiler: says nothing about the checker
    not_judged: int = 0  # the evaluator failed, or was not asked

    def add(self, verdict: str) -> None:
        if verdict == ACCEPTED:
            self.accepted += 1
        elif verdict == NOT_COMPILED:
            self.not_compiled += 1
        elif verdict in NOT_JUDGED:
            self.not_judged += 1
        else:
            self.refused += 1

    def row(self, name: str) -> str:
        judged = self.refused + self.accepted
        return f"| {name} | {share(self.refused, judged)} | {self.not_compiled} | {self.not_judged} |"


@dataclass
class Figures:
    """The results of one evaluator for all kernels."""

    states: Counter[str] = field(default_factory=Counter)  # of mutants
    whole: Tally = field(default_factory=Tally)
    by_class: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    by_operator: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    by_task: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    by_group: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    verdicts: Counter[str] = field(default_factory=Counter)  # of mutants that are wrong
    survivors: list[tuple[Variant, str, Answer]] = field(default_factory=list)  # with class and witness
    right: Counter[str] = field(default_factory=Counter)  # verdicts on right kernels
    refused_right: list[tuple[Variant, Mapping[str, Any]]] = field(default_factory=list)
    rewrites_not_right: list[tuple[Variant, str]] = field(default_factory=list)


def figures(
    wrong: Iterable[Variant],
    right: Iterable[Variant],
    witnesses: Mapping[str, Mapping[str, Answer]],
    verdicts: Verdicts,
    order: Sequence[str],
) -> Figures:
    """The figures of one evaluator; `order`: the places whose witnesses make the classes."""
    found = Figures()
    for variant in wrong:
        answers = witnesses.get(variant.id, {})
        found.states[state(answers)] += 1
        if state(answers) == "wrong":
            _add_mutant(found, variant, answers, verdicts.get(variant.id, {}), order)
    for variant in right:
        seen = state(witnesses.get(variant.id, {}))
        if seen != "right":
            found.rewrites_not_right.append((variant, seen))
            continue
        said = verdicts.get(variant.id, {})
        verdict = said.get("verdict", "not asked")
        found.right[verdict] += 1
        if verdict not in (ACCEPTED, *NOT_JUDGED):
            found.refused_right.append((variant, said))
    return found


def _add_mutant(
    found: Figures, variant: Variant, answers: Mapping[str, Answer], said: Mapping[str, Any], order: Sequence[str]
) -> None:
    verdict, kind = said.get("verdict", "not asked"), witness_class(answers, order)
    found.verdicts[verdict] += 1
    for tally in (
        found.whole, found.by_class[kind], found.by_operator[variant.operator], found.by_task[variant.task_name],
        found.by_group[variant.group],
    ):  # fmt: skip
        tally.add(verdict)
    if verdict == ACCEPTED:
        found.survivors.append((variant, kind, answers[kind]))


def table(evaluator: str, found: Figures) -> str:
    """The report on one evaluator, in Markdown."""
    head = "| {} | refused | not compiled | not judged |\n|---|---|---|---|"
    lines = [f"## Evaluator {evaluator}", "", f"Mutants: {_counts(found.states)}.", ""]
    lines += [f"Verdicts on those that are wrong: {_counts(found.verdicts)}.", ""]
    lines += [head.format("class of witness"), found.whole.row("all")]
    lines += [found.by_class[kind].row(kind) for kind in CLASSES[evaluator] if kind in found.by_class]
    for name, rows in (("group", found.by_group), ("operator", found.by_operator), ("task", found.by_task)):
        lines += ["", head.format(name), *(rows[key].row(key) for key in sorted(rows))]
    lines += ["", "Survivors:", ""]
    lines += [
        f"- {kind}: {v.id} {v.task_name}/{v.kernel} {v.operator}, {v.place}; wrong at {_inputs(witness)}"
        for v, kind, witness in sorted(found.survivors, key=lambda s: (s[1], s[0].task_name, s[0].id))
    ]
    judged = sum(count for verdict, count in found.right.items() if verdict not in NOT_JUDGED)
    lines += ["", f"Right kernels: accepted {share(found.right[ACCEPTED], judged)}; {_counts(found.right)}.", ""]
    lines += [
        f"- refused: {v.id} {v.task_name}/{v.kernel} {v.operator}: "
        f"{said['verdict']} at {said['stage']}: {said['message']}"
        for v, said in found.refused_right
    ]
    lines += [
        f"- not seen to be right: {v.id} {v.task_name}/{v.kernel} {v.operator}: {s}"
        for v, s in found.rewrites_not_right
    ]
    return "\n".join(lines) + "\n"


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.most_common()) or "none"


def _inputs(witness: Answer) -> str:
    if "axes" not in witness:
        return f"{witness['place']} ({witness['status']})"
    axes = " ".join(f"{a}={n}" for a, n in witness["axes"].items())
    return f"{axes}, inputs {witness['variant']!r} ({witness['status']}, error {witness['error']})"


def beside(
    folder: Folder, device: str, wrong: Sequence[Variant], right: Sequence[Variant], order: Sequence[str]
) -> str:
    """The kill rates and false alarms of all checks on the same kernels, in Markdown: those that all of them judged.

    TritonBench's rules are for its own kernels alone, so there are two tables.
    """
    witnesses = folder.all_witnesses()
    evaluator = EVALUATORS[device]
    checks = {evaluator: folder.all_verdicts(evaluator)}
    checks |= {r: folder.all_verdicts(f"{r}-{evaluator}") for r in peer_checks.RULES}
    lines = [f"## Side by side, {evaluator}", ""]
    for title, names in (("All kernels", list(checks)[:2]), ("Kernels of TritonBench-G", list(checks))):
        judged = set.intersection(*({i for i, said in checks[n].items() if _says(said)} for n in names))
        if not judged:
            continue
        lines += [f"{title}:", "", "| check | wrong kernels refused | right kernels refused |", "|---|---|---|"]
        mutants, others = ([v for v in variants if v.id in judged] for variants in (wrong, right))
        by_check = {n: figures(mutants, others, witnesses, checks[n], order) for n in names}
        for name, found in by_check.items():
            alarms = sum(found.right.values()) - found.right[ACCEPTED]
            killed = share(found.whole.refused, found.whole.refused + found.whole.accepted)
            lines.append(f"| {_CHECKS.get(name, 'evo')} | {killed} | {share(alarms, sum(found.right.values()))} |")
        lines += ["", "| operator | " + " | ".join(_CHECKS.get(n, "evo") for n in names) + " |"]
        lines += ["|---" * (len(names) + 1) + "|"]
        for operator in sorted(by_check[names[0]].by_operator):
            row = [by_check[n].by_operator[operator] for n in names]
            lines.append(f"| {operator} | " + " | ".join(share(t.refused, t.refused + t.accepted) for t in row) + " |")
        lines.append("")
    return "\n".join(lines)


_CHECKS = {
    peer_checks.KERNELBENCH: "KernelBench's rule",
    peer_checks.TRITONBENCH: "TritonBench's rule",
    peer_checks.TESTS: "values of TritonBench's tests",
}


def _says(said: Mapping[str, Any]) -> bool:
    return said["verdict"] not in (NOT_COMPILED, *NOT_JUDGED)


# --- the command -----------------------------------------------------------------------------------------------------


def right_ones(options: argparse.Namespace, folder: Folder, device: str) -> list[RightKernel]:
    """The right kernels of the groups that were asked for, as they are tasks on a device.  Raises EvoError."""
    found = kernel_sets.built_in(options.only)
    if options.only:
        return found
    if options.tritonbench is not None:
        place = folder.tasks("tritonbench-g", EVALUATORS[device])
        gpus = len(gpus_here()) if device == "cuda" else 0
        found += kernel_sets.tritonbench(options.tritonbench, place, gpus=gpus, jobs=options.jobs, say=say)
    if options.kernelbench is not None:
        found += kernel_sets.kernelbench(options.kernelbench, folder.tasks("kernelbench"), say)
    found += kernel_sets.answers(options.kernelbench, folder.tasks("answers"), say)
    return [k for k in found if options.split in ("all", kernel_sets.split_of(k)) and kernel_sets.has_kernels(k)]


def variants_of(
    found: Sequence[RightKernel], seed: int, limit: int | None, jobs: int
) -> tuple[list[Variant], list[Variant]]:
    """Mutants and right kernels; `limit`: about how many of each, from all tasks alike.  `jobs`: processes."""
    by_task: dict[tuple[str, str], list[RightKernel]] = defaultdict(list)
    for kernel in found:
        by_task[kernel.group, kernel.task].append(kernel)
    count = None if limit is None else math.ceil(limit / len(by_task))
    kernels = list(by_task.values())
    groups, seeds = [group for group, _ in by_task], [seed] * len(kernels)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        wrong = list(pool.map(wrong_kernels, kernels, [MUTANTS[group] for group in groups], seeds))
        right = list(pool.map(right_kernels, kernels, [REWRITES[group] for group in groups], seeds))
    return [v for variants in wrong for v in variants[:count]], [v for variants in right for v in variants[:count]]


def run(folder: Folder, wrong: Sequence[Variant], right: Sequence[Variant], device: str, jobs: int) -> None:
    """Everything that is not done yet on a device."""
    find_witnesses(folder, right, device, jobs)
    wrong, right = usable(folder, wrong, right)
    find_witnesses(folder, wrong, device, jobs)
    witnesses = folder.all_witnesses()
    judged = [v for v in wrong if state(witnesses.get(v.id, {})) == "wrong"]
    judged += [v for v in right if state(witnesses.get(v.id, {})) == "right"]
    # At the same time: the one waits for the GPU while the other takes the cores.
    with ThreadPoolExecutor(2) as pool:
        for future in [
            pool.submit(find_verdicts, folder, judged, EVALUATORS[device], jobs),
            pool.submit(apply_rules, folder, judged, device, max(1, jobs // 4)),
        ]:
            future.result()


def usable(folder: Folder, wrong: Sequence[Variant], right: Sequence[Variant]) -> tuple[list[Variant], list[Variant]]:
    """The variants of kernels that are seen to be right as they are; others say nothing."""
    witnesses = folder.all_witnesses()
    plain = {(v.task, v.kernel): state(witnesses.get(v.id, {})) for v in right if v.operator == PLAIN}
    chosen = [[v for v in variants if plain.get((v.task, v.kernel)) == "right"] for variants in (wrong, right)]
    return chosen[0], chosen[1]


def report(folder: Folder, device: str, wrong: Sequence[Variant], right: Sequence[Variant]) -> str:
    """The tables of a device; "" without verdicts."""
    evaluator = EVALUATORS[device]
    verdicts = folder.all_verdicts(evaluator)
    if not verdicts:
        return ""
    order = CLASSES[evaluator]
    whole = table(evaluator, figures(wrong, right, folder.all_witnesses(), verdicts, order))
    return f"{whole}\n{beside(folder, device, wrong, right, order)}"


COLUMNS = ("kind", "id", "group", "task", "kernel", "operator", "seen", "class", "inputs", "verdict", "stage", "rule")


def write_csv(folder: Folder, device: str, wrong: Sequence[Variant], right: Sequence[Variant]) -> None:
    """Writes one row for each kernel that witnesses say something of.

    seen: what they say (`state`); class, inputs: the first place and inputs that show the fault;
    rule: the verdict by KernelBench's rule.
    """
    evaluator = EVALUATORS[device]
    verdicts, rules = folder.all_verdicts(evaluator), folder.all_verdicts(f"{peer_checks.KERNELBENCH}-{evaluator}")
    witnesses, kinds = folder.all_witnesses(), (("wrong", wrong), ("right", right))
    with open(folder.root / f"{evaluator}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for kind, variant in ((kind, v) for kind, variants in kinds for v in variants if v.id in witnesses):
            answers, said = witnesses[variant.id], verdicts.get(variant.id, {})
            place = witness_class(answers, CLASSES[evaluator])
            writer.writerow(
                {
                    **{c: getattr(variant, c) for c in ("id", "group", "kernel", "operator")},
                    "kind": kind,
                    "task": variant.task_name,
                    "seen": state(answers),
                    "class": place,
                    "inputs": answers[place].get("variant", "") if place else "",
                    "verdict": said.get("verdict", ""),
                    "stage": said.get("stage", ""),
                    "rule": rules.get(variant.id, {}).get("verdict", ""),
                }
            )


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the results; what is there is not done again"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--device", choices=(*DEVICES, "none"), default="interpret")
    parser.add_argument("--tritonbench", type=Path, metavar="PATH", help="a checkout: its kernels too")
    parser.add_argument(
        "--kernelbench", type=Path, metavar="PATH", help="a checkout: evo's seeds and answers for it too"
    )
    parser.add_argument(
        "--split", choices=kernel_sets.SPLITS, default="development", help="kernels: for improving the checker, or kept"
    )
    parser.add_argument("--only", nargs="*", default=(), metavar="TASK", help="built-in tasks alone")
    parser.add_argument("--limit", type=int, help="about how many mutants, and how many right kernels")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.device == "cuda" and not has_gpu():
        parser.error("--device cuda: expected a CUDA GPU, got none; --device interpret needs none")
    folder = Folder(options.out)
    parts = []
    for device in DEVICES if options.device == "none" else (options.device,):
        try:
            wrong, right = variants_of(right_ones(options, folder, device), options.seed, options.limit, options.jobs)
        except (ValueError, EvoError) as error:
            parser.error(str(error))
        with open(folder.root / f"kernels-{EVALUATORS[device]}.jsonl", "w", encoding="utf-8") as file:
            for kind, variants in (("wrong", wrong), ("right", right)):
                file.writelines(json.dumps({"kind": kind, "id": v.id, **asdict(v)}) + "\n" for v in variants)
        say(f"{device}: {len(wrong)} mutants, {len(right)} right kernels")
        if options.device != "none":
            run(folder, wrong, right, device, options.jobs)
        kept = usable(folder, wrong, right)
        parts.append(report(folder, device, *kept))
        if parts[-1]:
            write_csv(folder, device, *kept)
    text = "\n".join(filter(None, parts))
    (folder.root / "report.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

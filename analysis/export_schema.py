"""Defines the tables of an export: every column with its type, its unit and its meaning.

`docs/export.md` holds the same in words (`python -m analysis.export_schema` prints it); a test compares the two.
Whoever changes a column raises VERSION.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

VERSION = 7
BATCH, TEXT_BATCH = 16384, 1024  # rows; whole sources and dialogues are 1 to 100 kB each, other rows 5 kB at most
_TABLES_OF_TEXTS = ("sources", "llm_calls", "sft", "grpo")
METADATA_KEY = "evo"  # of the Parquet file's key-value metadata; the value is JSON

_TEXT, _FLAG, _REAL, _INT, _SMALL = pa.string(), pa.bool_(), pa.float64(), pa.int64(), pa.int32()
_TIME = pa.timestamp("us", tz="UTC")
_TRIALS = pa.list_(_INT)
_NUMBERS = pa.map_(_TEXT, _REAL)
_MESSAGES = pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)]))


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    unit: str  # "" without one
    text: str


@dataclass(frozen=True)
class Table:
    name: str
    text: str
    columns: tuple[Column, ...]
    batch: int  # rows held at once; a row group in Parquet

    def schema(self, metadata: Mapping[str, Any] | None = None) -> pa.Schema:
        """Fields carry `unit` and `description`; the schema carries `metadata` as JSON."""
        fields = [pa.field(c.name, c.type, metadata={"unit": c.unit, "description": c.text}) for c in self.columns]
        return pa.schema(fields, metadata=None if metadata is None else {METADATA_KEY: json.dumps(metadata)})


def _table(name: str, text: str, columns: Sequence[tuple[str, pa.DataType, str, str]]) -> Table:
    return Table(name, text, tuple(Column(*c) for c in columns), TEXT_BATCH if name in _TABLES_OF_TEXTS else BATCH)


_RUN = ("run", _TEXT, "", "name of the run: its folder's, with as much of the path as tells the runs apart")
_TRIAL = ("trial", _INT, "", "number of the trial, from 0 (the seed kernel, or PyTorch for a task without one)")
_CANDIDATE_COLUMN = ("candidate", _TEXT, "", "id of the source: a hash that ignores comments and layout")
_VERDICT = ("verdict", _TEXT, "", "`ok`, `wrong`, `duplicate`, …; null while pending")
_STAGE = ("stage", _TEXT, "", "the stage that gave the verdict")
_ESTIMATED = ("estimated", _FLAG, "", "true: a model computed the speedup; false: a GPU measured it; null without one")
_SPEEDUP = (
    ("speedup", _REAL, "ratio", "over the baseline of the run, geometric mean over the tune cases; null unless ok"),
    ("ci_low", _REAL, "ratio", "lower end of its 95 % interval"),
    ("ci_high", _REAL, "ratio", "upper end"),
    _ESTIMATED,
)

_FINDING = pa.struct([("rule", _TEXT), ("line", _SMALL), ("message", _TEXT)])
_BUILD = pa.struct(
    [
        ("kernel", _TEXT),
        ("registers", _SMALL),
        ("spill_bytes", _INT),
        ("shared_bytes", _INT),
        ("num_warps", _SMALL),
        ("occupancy", _REAL),
        ("sass_hash", _TEXT),
        ("compile_s", _REAL),
    ]
)
_CASE = pa.struct(
    [
        ("case", _TEXT),
        ("speedup", _REAL),
        ("ratio", _REAL),
        ("ci_low", _REAL),
        ("ci_high", _REAL),
        ("estimated", _FLAG),
        ("attainable_us", _REAL),
        ("terms", _NUMBERS),
    ]
)
_HINT = pa.struct([("id", _TEXT), ("action", _TEXT)])

_TABLES = (
    _table(
        "runs",
        "One row a run.",
        [
            _RUN,
            ("folder", _TEXT, "", "where it was read from"),
            ("task", _TEXT, "", "name of a built-in task, or the path of its folder"),
            ("task_hash", _TEXT, "", "hash of the task's `task.py` and, if it has one, `kernel.py`"),
            ("target", _TEXT, "", "GPU it compiled for"),
            ("device", _TEXT, "", "`gpu`: measured on one; `cpu`: estimated"),
            ("strategy", _TEXT, "", "of the search"),
            ("operators", pa.list_(_TEXT), "", "that took part"),
            ("seed", _INT, "", "of all randomness"),
            ("budget", _INT, "trials", "candidates to evaluate after the seed"),
            ("workers", _SMALL, "", "evaluations at once"),
            ("islands", _SMALL, "", "populations"),
            (
                "baseline",
                _TEXT,
                "",
                "what speedups are over: `seed`, the task's kernel; or PyTorch: `eager`, `compile`, `eager-tf32`, "
                "`compile-tf32`",
            ),
            ("trials", _INT, "trials", "proposed, with the seed and what is pending"),
            ("finished", _INT, "trials", "evaluated"),
            ("ok", _INT, "trials", "evaluated and ok"),
            ("best_trial", _INT, "", "the fastest kernel, the earlier of equals; null without an ok one"),
            ("best_speedup", _REAL, "ratio", "its speedup over the baseline"),
            ("best_ci_low", _REAL, "ratio", "lower end of its 95 % interval"),
            ("best_ci_high", _REAL, "ratio", "upper end"),
            ("estimated", _FLAG, "", "whether a model computed the best speedup; null without one"),
            ("started_at", _TIME, "UTC", "when it began"),
            (
                "last_event",
                _TEXT,
                "",
                "kind of the last event: `started`, `resumed`, `versions`, `ended`, `refused`, `unprofiled` or `llm` "
                "(store.md, events)",
            ),
            ("last_event_text", _TEXT, "", "its text: versions, why the run ended, or what happened"),
            ("last_event_at", _TIME, "UTC", "when that was"),
            ("config", _TEXT, "", "all settings, JSON"),
            ("versions", pa.map_(_TEXT, _TEXT), "", "evo, its code, Python, torch, triton"),
            ("environment", _TEXT, "", "what the evaluator said of its machine, JSON"),
            ("fingerprint", _TEXT, "", "12 hex digits of versions and environment: equal if both are"),
        ],
    ),
    _table(
        "trials",
        "One row a proposal, in the order they were made, with what became of it.",
        [
            _RUN,
            _TRIAL,
            _CANDIDATE_COLUMN,
            ("operator", _TEXT, "", "that made it; `seed` for trial 0, or `baseline` if that is PyTorch"),
            ("parents", _TRIALS, "", "trials it was made from; the first gave the most"),
            ("island", _SMALL, "", "it belongs to"),
            ("seed", _INT, "", "keys all randomness of its evaluation"),
            ("note", _TEXT, "", "what the operator did, one line"),
            ("cost", _NUMBERS, "as named", "what making it took: screened sources, tokens, dollars, seconds"),
            ("proposed_at", _TIME, "UTC", "when it was proposed"),
            ("finished", _INT, "", "order of finishing; null while pending"),
            ("finished_at", _TIME, "UTC", "when it was evaluated"),
            ("seconds", _REAL, "s", "between the two, waiting included"),
            _VERDICT,
            _STAGE,
            *_SPEEDUP,
            (
                "bar",
                _REAL,
                "ratio",
                "speedup to reach at a first look; below it, the verdict is `slow`; null: evaluated all the way",
            ),
        ],
    ),
    _table(
        "lineage",
        "One row an edge: a trial and one of its parents.",
        [
            _RUN,
            _TRIAL,
            ("parent", _INT, "", "trial it was made from"),
            ("position", _SMALL, "", "of that parent, from 0 (gave the most)"),
            ("operator", _TEXT, "", "that made the trial"),
            ("speedup", _REAL, "ratio", "of the trial over the baseline; null unless ok"),
            ("parent_speedup", _REAL, "ratio", "of the parent over the baseline; null unless ok"),
            ("gain", _REAL, "ratio", "speedup / parent_speedup; null if one is"),
            ("estimated", _FLAG, "", "true: a model computed one of the two; null without either"),
        ],
    ),
    _table(
        "evaluations",
        "One row a finished trial, in the order they finished: all that the evaluator found.",
        [
            _RUN,
            ("finished", _INT, "", "order of finishing, which is the order of replay"),
            _TRIAL,
            _CANDIDATE_COLUMN,
            ("verdict", _TEXT, "", "`ok`, `wrong`, `duplicate`, …"),
            _STAGE,
            (
                "rank",
                _SMALL,
                "",
                "how far a candidate with this verdict came; 0: infrastructure; 1: rejected; 2: compile_error, "
                "unsupported; 3: out_of_memory, runtime_error, timeout, slow; 4: wrong; 5: duplicate, ok",
            ),
            ("message", _TEXT, "", 'why; "" if there is nothing to say'),
            *_SPEEDUP,
            (
                "cases",
                pa.list_(_CASE),
                "ratio; terms as named",
                "each tune case: speedup as it was scored, ratio as timed, attainable time in µs (null if unknown)",
            ),
            ("findings", pa.list_(_FINDING), "", "rules broken, with the line (0: none applies)"),
            ("builds", pa.list_(_BUILD), "as named; occupancy 0..1", "resources of each compiled kernel"),
            ("check_cases", _INT, "", "inputs it was verified on; null if it was not, as the next three"),
            ("check_worst_case", _TEXT, "", "the one farthest from the oracle"),
            ("check_max_error", _REAL, "error budgets", "error of that one; 1 is the limit"),
            ("check_budget", _REAL, "as the output", "its error budget, root mean square"),
            ("plan_hash", _TEXT, "", 'same hash, same work on the device where it is timed; "" if there is no plan'),
            ("duplicate_of", _TEXT, "", "candidate with the same plan; null unless duplicate"),
            ("stage_seconds", _NUMBERS, "s", "wall time by stage"),
            ("environment", _TEXT, "", "where it was evaluated, JSON"),
            ("finished_at", _TIME, "UTC", "when"),
        ],
    ),
    _table(
        "timings",
        "One row a sample: candidate and baseline, timed one after the other.",
        [
            _RUN,
            _TRIAL,
            ("case", _TEXT, "", "tune case"),
            ("sample", _SMALL, "", "number of the pair, from 0"),
            ("candidate_us", _REAL, "µs", "time of the candidate"),
            ("baseline_us", _REAL, "µs", "time of the baseline"),
            ("attainable_us", _REAL, "µs", "least time of the case on that GPU; null if unknown, as in earlier runs"),
            ("estimated", _FLAG, "", "true: both come from a model, one pair a case"),
        ],
    ),
    _table(
        "profiles",
        "One row a profiled candidate and tier.",
        [
            _RUN,
            ("trial", _INT, "", "that proposed the candidate; null if none did"),
            _CANDIDATE_COLUMN,
            ("tier", _TEXT, "", "`ncu`: hardware counters; `counters-free`: measured times; `estimate`: a model"),
            ("bottleneck", _TEXT, "", "`memory`, `compute`, `latency`, `parallelism` or `overhead`"),
            ("reason", _TEXT, "", "one sentence"),
            ("case", _TEXT, "", 'the size that was looked at; "" if unknown'),
            ("kernel", _TEXT, "", 'the one that takes the most time; "" if unknown'),
            ("roofline", _REAL, "0..1", "least possible time / time; null if unknown"),
            ("numbers", _NUMBERS, "as named", "the few that show the bottleneck"),
            ("before", _NUMBERS, "as named", "the same of the candidate it was made from"),
            ("metrics", _NUMBERS, "as named", "all that was read"),
            ("hints", pa.list_(_HINT), "", "actions it suggests"),
            ("fallback", _TEXT, "", 'why a better tier was not used; "" if it was'),
            ("profiled_at", _TIME, "UTC", "when"),
        ],
    ),
    _table(
        "llm_calls",
        "One row a question to a model.  `request` to `answered_source` are null without `--with-text`.",
        [
            _RUN,
            ("call", _INT, "", "number of the call, in the order of asking"),
            ("trial", _INT, "", "made of the answer; null if there is none (yet)"),
            ("prompt_hash", _TEXT, "", "of the messages: equal prompts, equal hash"),
            ("model", _TEXT, "", "that was asked"),
            ("operator", _TEXT, "", "that asked, with its model"),
            ("parents", _TRIALS, "", "trials the prompt is about"),
            ("island", _SMALL, "", "the child belongs to"),
            ("told", _INT, "trials", "finished when it was asked"),
            ("request", _TEXT, "", "messages and parameters, JSON"),
            ("answer", _TEXT, "", "what the model said; null without an answer"),
            ("reasoning", _TEXT, "", "what it thought before, if the endpoint tells"),
            (
                "answered_source",
                _TEXT,
                "",
                "in the answer, if another one was judged; null in runs of earlier versions",
            ),
            ("finish", _TEXT, "", "why the model stopped; null if unknown"),
            ("tokens_in", _INT, "tokens", "billed for prompts, of all attempts; null if unknown"),
            ("tokens_out", _INT, "tokens", "billed for answers, reasoning included; null if unknown"),
            ("usd", _REAL, "US dollars", "what those cost; null if the price is unknown"),
            ("attempts", _INT, "requests", "sent"),
            ("unsettled", _INT, "requests", "of those, the ones whose bill is not known"),
            ("seconds", _REAL, "s", "from the first attempt to the answer"),
            ("error", _TEXT, "", "why there is no answer"),
            ("asked_at", _TIME, "UTC", "when"),
            ("answered_at", _TIME, "UTC", "when; null without an answer"),
        ],
    ),
    _table(
        "sources",
        "One row a source.",
        [
            _RUN,
            _CANDIDATE_COLUMN,
            _TRIAL,
            ("text", _TEXT, "", "the source, as proposed; a line that says so for an answer without one"),
            ("frozen_text", _TEXT, "", "with the autotune configuration chosen; null if there was none to choose"),
        ],
    ),
)

_SAMPLE = (
    ("prompt", _MESSAGES, "", "messages the model was sent"),
    (
        "completion",
        _MESSAGES,
        "",
        "one message: its answer; verdict and speedup are of the kernel in this very text",
    ),
    (
        "tuned",
        _FLAG,
        "",
        "false: the completion is as the model wrote it; true: its code is the judged source, with tuned parameters",
    ),
    ("as_written", _TEXT, "", "the answer as the model wrote it, if `tuned`; null otherwise"),
    ("reasoning", _TEXT, "", "what it said it thought, if the endpoint gives that apart; null otherwise"),
    ("plan_start", _INT, "characters", "first character of the plan in the completion; null without a plan"),
    ("plan_end", _INT, "characters", "one past its last"),
    ("code_start", _INT, "characters", "first character of the code in the completion; null without code"),
    ("code_end", _INT, "characters", "one past its last"),
    _RUN,
    ("call", _INT, "", "number of the call"),
    ("trial", _INT, "", "the answer became"),
    ("task", _TEXT, "", "name of a built-in task, or the path of its folder"),
    ("target", _TEXT, "", "GPU it was compiled for"),
    ("model", _TEXT, "", "that answered"),
    ("operator", _TEXT, "", "that asked"),
    ("parents", _TRIALS, "", "trials the prompt is about; 0 is the baseline"),
)

_TRAINING = (
    _table(
        "sft",
        "One row an answer that became a verified gain.",
        [
            ("messages", _MESSAGES, "", "prompt and completion in one list"),
            *_SAMPLE,
            ("speedup", _REAL, "ratio", "over the baseline of the run"),
            ("ci_low", _REAL, "ratio", "lower end of its 95 % interval; above 1"),
            ("ci_high", _REAL, "ratio", "upper end"),
            ("estimated", _FLAG, "", "true: a model computed the speedup (only with `--allow-estimated`)"),
            ("parent_speedup", _REAL, "ratio", "of the fastest parent; null if no parent was ok"),
        ],
    ),
    _table(
        "grpo",
        "One row an answer with a verdict.",
        [
            *_SAMPLE,
            ("group", _TEXT, "", "answers of one model to one prompt in one run"),
            ("verdict", _TEXT, "", "`ok`, `wrong`, `duplicate`, …"),
            ("stage", _TEXT, "", "the stage that gave the verdict"),
            ("syntax", _FLAG, "", "it is Python"),
            ("rules", _FLAG, "", "it keeps the rules, statically and in what it did"),
            ("compiled", _FLAG, "", "it compiles for the target"),
            ("correct", _FLAG, "", "its outputs are right; a duplicate's flags are its twin's"),
            ("speedup", _REAL, "ratio", "over the baseline; of the twin for a duplicate; null unless correct"),
            ("ci_low", _REAL, "ratio", "lower end of its 95 % interval"),
            ("ci_high", _REAL, "ratio", "upper end"),
            _ESTIMATED,
            ("autotriton_reward", _REAL, "", "rules × correct"),
            ("autotriton_advantage", _REAL, "", "of that reward within the group"),
            ("tritonrl_plan_reward", _REAL, "", "r_speed: speedup if correct, else 0; for the plan's tokens"),
            ("tritonrl_plan_advantage", _REAL, "", "of that reward within the group"),
            (
                "tritonrl_code_reward",
                _REAL,
                "",
                "r_correct: syntax × rules × compiled × correct; for the code's tokens",
            ),
            ("tritonrl_code_advantage", _REAL, "", "of that reward within the group"),
            ("tritonrl_alpha", _REAL, "", "weight of the plan's tokens in the loss; the code's have weight 1"),
            ("data_source", _TEXT, "", "for verl: `evo/` and the task"),
            ("ability", _TEXT, "", "for verl: `triton`"),
            (
                "reward_model",
                pa.struct([("style", _TEXT), ("ground_truth", _TEXT)]),
                "",
                "for verl: `rule`, and the task to judge by (`evo evaluate`)",
            ),
            ("extra_info", pa.struct([("index", _INT), ("split", _TEXT)]), "", "for verl: row, and `train`"),
        ],
    ),
)

EXPORT = {table.name: table for table in _TABLES}
TRAINING = {table.name: table for table in _TRAINING}


def markdown() -> str:
    """Returns the description of all tables for `docs/export.md`."""
    lines = []
    for table in (*_TABLES, *_TRAINING):
        lines += [f"### {table.name}", "", table.text, "", "| column | type | unit | |", "|---|---|---|---|"]
        lines += [f"| `{c.name}` | {in_words(c.type)} | {c.unit} | {c.text} |" for c in table.columns]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def in_words(kind: pa.DataType) -> str:
    """The type in words of our own: those of pyarrow differ between its versions."""
    if pa.types.is_list(kind):
        return f"list of {in_words(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "{" + ", ".join(f"{field.name}: {in_words(field.type)}" for field in kind) + "}"
    if pa.types.is_map(kind):
        return f"map of {in_words(kind.key_type)} to {in_words(kind.item_type)}"
    return "timestamp" if pa.types.is_timestamp(kind) else str(kind)


if __name__ == "__main__":
    print(markdown(), end="")

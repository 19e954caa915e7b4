"""A Python function as a language model: evo asks it for kernels and evaluates what it answers.

    python examples/callable_model.py [FOLDER]

The function below only changes a number.  In its place call a model of your own: `messages` is what a chat endpoint
takes.  The run keeps all questions and answers, so `evo show`, `evo calls` and `evo replay` work without the function;
to go on with the run, give the function again: evo.resume(RUN, budget=8, models=[model]).
"""

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from library_use import make_task

import evo


@dataclass
class Answer:
    """What a function may return in place of a plain text, so that --max-tokens can count."""

    text: str
    tokens_in: int
    tokens_out: int


def answer(messages: list[dict[str, str]]) -> Answer:
    """The kernel of the last message with twice its block size, as a prompt asks for it: a code block."""
    question = messages[-1]["content"]
    source = re.findall(r"```python\n(.*?)```", question, re.DOTALL)[-1]
    changed = re.sub(r"block = (\d+)", lambda found: f"block = {2 * int(found[1])}", source)
    text = f"Larger blocks start fewer programs.\n\n```python\n{changed}```\n"
    return Answer(text, tokens_in=len(question) // 4, tokens_out=len(text) // 4)


def main(folder: Path) -> None:
    model = evo.Model.from_callable("doubler", answer)
    result = evo.search(
        make_task(),
        budget=2,
        gpus="none",
        workers=1,
        models=[model],
        operators=["mutate"],
        run_dir=folder / "run",
    )
    for trial in result.trials:
        print(trial.index, trial.proposal.operator, trial.evaluation.verdict, trial.proposal.note)
    print("best:", result.best, "for", result.spent.tokens, "tokens")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))

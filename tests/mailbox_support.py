"""A mailbox of questions to a model that is answered meanwhile, as by a person."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def answering(box: Path, answer_of: Callable[[Path], str]) -> Iterator[None]:
    """Answers each request in the folder once, in the order of names.  answer_of: returns the text for a request."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.02):
            for question in sorted(box.glob("*.request.md")):
                answer = question.with_name(question.name.replace(".request.", ".answer."))
                if not answer.exists():
                    draft = answer.with_suffix(".draft")
                    draft.write_text(answer_of(question))
                    draft.rename(answer)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

"""`python -m analysis.figures [--check]`: writes the figures of all documents again, or says which differ."""

from __future__ import annotations

import argparse
import sys

from analysis.figures import marks
from evo.core.errors import EvoError


def main(argv: list[str] | None = None) -> int:
    """Returns 0; with --check 1 if a document differs from the data.  2: a mark is wrong."""
    parser = argparse.ArgumentParser(prog="python -m analysis.figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a figure differs")
    check = parser.parse_args(argv).check
    differ = total = 0
    try:
        for document in marks.documents():
            total += marks.count(document)
            for difference in marks.differences(document):
                differ += 1
                print(f"{document.relative_to(marks.ROOT)}: {difference}")
            if not check:
                document.write_text(marks.rewritten(document), encoding="utf-8")
    except EvoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{total} figures, {differ} {'differ from the data' if check else 'written again'}")
    return int(check and differ > 0)


if __name__ == "__main__":
    sys.exit(main())

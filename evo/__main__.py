"""`python -m evo`."""

from __future__ import annotations

import sys

from evo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

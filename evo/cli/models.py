"""Language models on the command line: the options of `evo run`."""

from __future__ import annotations

import argparse
from pathlib import Path

# Questions in flight if several workers evaluate, as `evo.api` has it, whose import would cost --help its speed.
DEFAULT_CONCURRENCY = 8


def add_options(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("language models", "see docs/llm.md")
    group.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME@BASE_URL",
        help="a model at an OpenAI-compatible endpoint; or NAME@mailbox:DIR, replay:RUN; may be repeated. "
        "Its key comes from the environment: EVO_API_KEY_NAME or OPENAI_API_KEY",
    )
    group.add_argument("--models", type=Path, metavar="FILE.toml", help="prices and settings of models")
    group.add_argument(
        "--llm-concurrency", type=int, metavar="K", help=f"questions in flight (default: {DEFAULT_CONCURRENCY}; 1 with "
        "--workers 1, which is repeatable)"
    )  # fmt: skip
    group.add_argument("--max-tokens", type=int, metavar="N", help="hard limit on tokens, of prompts and answers")
    group.add_argument("--max-usd", type=float, metavar="X", help="hard limit on dollars; needs prices")
    group.add_argument(
        "--guidance", metavar="KIND", help="what prompts tell of profiles: digest (default), raw or none"
    )

"""Tries the whole corpus of cheats through HTTP and through MCP: `python -m tests.service_hacks`.

Minutes on two cores, so it is no test; `tests/test_serve.py` tries some of them.  Exit code 1 if one is ok.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mcp import Client

import evo
from evo.core.errors import ConfigError, EvoError
from tests.service_support import real_service
from tests.test_hacks import CORPUS, header


def through_http(url: str) -> dict[str, str]:
    """The verdict on each file, by its name; "not sent" if it is no text."""
    with evo.Client(url, patience_s=3600) as client:
        found = {}
        for path in sorted(CORPUS, key=lambda each: header(each)["task"]):
            source = path.read_text(encoding="utf-8", errors="surrogateescape")
            try:
                found[path.stem] = client.evaluate(source, task=header(path)["task"]).verdict.value
            except ConfigError:
                found[path.stem] = "not sent"
            except EvoError as error:
                found[path.stem] = f"failed: {error}"
            print(time.strftime("%H:%M:%S"), path.stem, found[path.stem], file=sys.stderr, flush=True)
        return found


async def through_mcp(url: str) -> dict[str, str]:
    """As `through_http`; the service has the results by then, so this takes seconds."""
    found = {}
    async with Client(f"{url}/mcp") as client:
        for path in CORPUS:
            source = path.read_text(encoding="utf-8", errors="surrogateescape")
            if not source.isascii() and source != source.encode("utf-8", "replace").decode():
                found[path.stem] = "not sent"
                continue
            answer = await client.call_tool("evaluate_kernel", {"task": header(path)["task"], "source": source})
            found[path.stem] = (answer.structured_content or {}).get("verdict", "failed")
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, real_service(Path(folder), limit_s=7200) as url:
        found = {"HTTP": through_http(url), "MCP": asyncio.run(through_mcp(url))}
    for way, verdicts in found.items():
        expected = {path.stem: {v.strip() for v in header(path)["verdict"].split("|")} for path in CORPUS}
        others = {name: v for name, v in verdicts.items() if v not in expected[name]}
        print(f"{way}: {len(verdicts)} files, {dict(Counter(verdicts.values()))}; not as the header says: {others}")
    return int(any(verdict == "ok" for verdicts in found.values() for verdict in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())

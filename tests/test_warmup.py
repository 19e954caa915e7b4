from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fitness.frontend.memory import FILE_NAME
from fitness.frontend.plan import from_json
from fitness.frontend.recording import record
from fitness.frontend.warmup import warm_up


def test_each_job_gets_what_the_one_before_made_of_the_sample() -> None:
    seen: dict[str, tuple[Mapping[str, Any], list[str]]] = {}

    def job(name: str) -> Any:
        def run(payload: Mapping[str, Any], scratch: Path) -> Mapping[str, Any]:
            seen[name] = payload, [p.name for p in scratch.iterdir()]
            return {}

        return run

    others = ("compile", "interpret", "trace")
    before = set(sys.modules)  # other tests of this process may have left theirs
    warm_up({"record": record.job, **{name: job(name) for name in others}}, "sm_90")
    assert tuple(seen) == others
    assert [launch["kernel"] for launch in seen["compile"][0]["launches"]] == ["kernel"]
    plan = from_json(seen["interpret"][0]["plan"])
    assert len(plan.launches) == 1 and not plan.delegated
    assert FILE_NAME in seen["interpret"][1]
    assert seen["trace"][0]["cases"][0]["plan"] == seen["interpret"][0]["plan"]
    assert not any(name.startswith("candidate") for name in set(sys.modules) - before)

"""evo.core.versions."""

from __future__ import annotations

from pathlib import Path

from evo.core.versions import code_hash, versions


def test_versions_name_what_results_depend_on() -> None:
    found = versions()
    assert set(found) == {"evo", "code", "python", "torch", "triton"}
    assert all(found.values())
    assert found == versions()


def test_code_counts_but_tasks_have_their_own_hash(tmp_path: Path) -> None:
    for name in ("evo/a.py", "fitness/tasks/builtin/mine/task.py", "fitness/b.py", "operators/c.md.j2", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    before = code_hash(tmp_path)
    for name in ("fitness/tasks/builtin/mine/task.py", "notes.txt"):
        (tmp_path / name).write_text("x = 2\n")
    assert code_hash(tmp_path) == before
    for name in ("fitness/b.py", "operators/c.md.j2"):
        (tmp_path / name).write_text("x = 2\n")
        assert code_hash(tmp_path) != before
        (tmp_path / name).write_text("x = 1\n")

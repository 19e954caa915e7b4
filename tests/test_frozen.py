"""fitness.tasks.frozen: what is told about a task that changed since it was frozen."""

from __future__ import annotations

from pathlib import Path

from fitness.tasks.frozen import FILE, changed, freeze


def test_a_change_is_told_and_names_the_file(tmp_path: Path) -> None:
    for name in ("task.py", "kernel.py"):
        (tmp_path / name).write_text(name)
    assert changed(tmp_path) == ""  # never frozen
    freeze(tmp_path, "hash", {"model": "m"})
    assert changed(tmp_path) == ""
    (tmp_path / "kernel.py").write_text("other")
    assert changed(tmp_path).startswith(f"kernel.py in {tmp_path} changed since the task was validated and frozen")
    (tmp_path / FILE).write_text("{}")
    assert "cannot be read (KeyError)" in changed(tmp_path)
    (tmp_path / FILE).unlink()
    assert changed(tmp_path) == ""

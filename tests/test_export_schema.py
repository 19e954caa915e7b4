"""analysis.export_schema and docs/export.md say the same."""

from __future__ import annotations

from pathlib import Path

from analysis import export_schema

DOCS = Path(__file__).parent.parent / "docs" / "export.md"


def test_the_documentation_is_that_of_the_schema() -> None:
    """Whoever changes a column prints the new text by `python -m analysis.export_schema`, and raises VERSION."""
    text = DOCS.read_text(encoding="utf-8")
    assert text.endswith(export_schema.markdown())
    assert f"Version of the tables: {export_schema.VERSION}." in text


def test_every_column_is_described_once() -> None:
    for table in (*export_schema.EXPORT.values(), *export_schema.TRAINING.values()):
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names), table.name
        assert all(column.text for column in table.columns), table.name


def test_every_speedup_has_a_flag_for_estimates_beside_it() -> None:
    for table in (*export_schema.EXPORT.values(), *export_schema.TRAINING.values()):
        names = {column.name for column in table.columns}
        if any("speedup" in name for name in names):
            assert "estimated" in names, table.name

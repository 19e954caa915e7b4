"""Tasks: the format, loading, scaffolding; `builtin/` holds the built-in ones."""

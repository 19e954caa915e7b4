"""The gate: rules over a candidate's syntax tree."""

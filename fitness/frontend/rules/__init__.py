"""The rules of the gate, over the syntax tree of a candidate."""

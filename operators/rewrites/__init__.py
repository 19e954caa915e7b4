"""Structural rewrites by family; each has its own precondition and leaves what a kernel computes as it was."""

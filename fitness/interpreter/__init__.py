"""Triton's interpreter with the compiler's meaning: executes plans on machines without a GPU."""

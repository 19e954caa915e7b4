"""Executes plans on machines without a GPU: Triton's interpreter, corrected to mean what the compiler means."""

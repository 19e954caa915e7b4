"""Turns KernelBench, levels 1 to 3, into tasks (`docs/suites.md`)."""

"""Turns TritonBench-T into tasks (`docs/suites.md`)."""

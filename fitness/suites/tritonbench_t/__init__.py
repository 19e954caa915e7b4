"""TritonBench-T as tasks (`docs/suites.md`)."""

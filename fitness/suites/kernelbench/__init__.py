"""KernelBench, levels 1 to 3, as tasks (`docs/suites.md`)."""

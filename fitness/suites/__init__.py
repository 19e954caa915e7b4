"""Benchmark suites: files of others, read from a checkout given by path and turned into task folders."""

"""Profiles kernels: counters, timings or estimates that say why a kernel is slow."""

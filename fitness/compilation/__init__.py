"""Kernels of a candidate: cut out of the source, compiled for the target, screened by what they need."""

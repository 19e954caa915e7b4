"""Compares what a plan computes with the float64 oracle."""

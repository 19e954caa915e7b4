"""Runs a candidate's host code once on fake tensors, and records what it would launch."""

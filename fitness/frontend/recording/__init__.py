"""A candidate's host code, run once on fake tensors: what it would launch."""

"""Compares evo with other search engines: the same tasks, evaluator, number of proposals and model."""

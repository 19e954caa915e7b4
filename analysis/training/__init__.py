"""Trains language models on evaluated kernels: training tables, and recipes for TRL (docs/training.md).

`tables` makes the rows of `evo export --format sft|grpo`, `data` chooses among them, `tokens` has the formulas of
TritonRL's token weights, and `hierarchical` its trainer.  Only `hierarchical` and `demo` need TRL.
"""

"""Operators of language models: each makes a prompt and reads the answer; `evo.llm` does the asking."""

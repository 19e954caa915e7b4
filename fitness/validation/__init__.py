"""Checks of a task before evo trusts it, and of tasks that a language model wrote."""

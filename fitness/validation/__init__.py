"""Checks tasks before evo trusts them, and tasks that a language model wrote."""

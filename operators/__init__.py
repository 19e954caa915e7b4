"""Operators make new kernel sources out of old ones."""

"""Verifies and times plans on a GPU: the trusted runner, its process, and what runs there."""

"""Turns files of benchmark suites into task folders; the checkout is given by path."""

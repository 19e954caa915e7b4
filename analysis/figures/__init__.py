"""Figures that documents state, computed from the committed data of `runs/reference`.

`marks` finds the figures in documents and writes them again; `suites` and `searches` compute them.
"""

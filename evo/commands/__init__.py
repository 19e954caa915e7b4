"""The commands, one a module: `add` puts a command into the parser, with the function that does it.

Imports what is heavy (torch, DEAP, rich) inside the functions: `--help` must answer at once.
"""

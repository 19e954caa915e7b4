"""The command line, one module a command: `add` puts a command into the parser, with the function that runs it.

Imports what is heavy (torch, DEAP, rich) inside the functions, so that `--help` answers at once.
"""

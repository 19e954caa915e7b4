"""Records, errors, settings and other things that every part of evo uses."""

VERSION = "0.1.0"

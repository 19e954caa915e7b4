"""Certificates: a champion's real Python, run in a sandbox with the GPU, under sanitizers."""

"""Certifies champions: runs their real Python in a sandbox with the GPU, and their plans under sanitizers."""

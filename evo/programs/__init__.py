"""From a user's program to tasks: watches the launches of kernels, and compares whole programs."""

"""The weaker tier: candidates that cannot be recorded, run as Python on the GPU and judged from outside."""

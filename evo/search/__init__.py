"""The search: what to try next, and the loop that tries it."""

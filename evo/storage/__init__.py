"""Run folders: what is stored, and how it is read."""

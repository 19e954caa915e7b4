"""Campaigns: tasks × variants × seeds, run and compared."""

"""Reads runs; never changes them."""

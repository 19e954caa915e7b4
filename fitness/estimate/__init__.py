"""Estimates times without a GPU: traffic and operations of sampled programs, and a time model of the target."""

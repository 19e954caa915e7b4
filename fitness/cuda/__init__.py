"""Reaches the CUDA driver: which GPUs there are, and how kernels are loaded and launched on them."""

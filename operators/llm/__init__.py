"""Operators that ask a language model: each makes a prompt and reads the answer; who asks is not their business."""

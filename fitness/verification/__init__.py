"""What a plan computes, on the CPU: Triton's interpreter, against the oracle."""

"""Where untrusted code runs: confined processes forked from a warm zygote."""

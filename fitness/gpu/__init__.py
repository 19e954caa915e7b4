"""What a plan computes and how long it takes, on a GPU: the trusted runner."""

"""The sandbox: runs untrusted code in confined processes forked from a warm zygote."""

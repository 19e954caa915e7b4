"""From a source to compiled kernels: gate, recorded host code, compiled and screened kernels."""

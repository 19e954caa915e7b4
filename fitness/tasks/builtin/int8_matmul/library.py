"""The library's kernel for this task: cuBLAS in float16, on weights converted in each call."""


def library(x, w, scale):
    return (x @ w.to(x.dtype)) * scale

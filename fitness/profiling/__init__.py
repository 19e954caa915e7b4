"""Why a kernel is as slow as it is: counters, timings or the estimate, in a few words."""

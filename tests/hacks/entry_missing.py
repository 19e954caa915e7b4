"""task: softmax
verdict: rejected
stage: gate
rule: entry
why: the file says nothing
"""

"""On what a candidate is verified on a GPU."""

from __future__ import annotations

from collections import Counter

from fitness.gpu.verification import FRESH, inputs_of
from fitness.tasks.task import load_task
from fitness.verify.oracle import VARIANTS

SOFTMAX = load_task("softmax")
CASES = SOFTMAX.cases


def test_every_case_sees_fresh_inputs_and_every_variant_one_case():
    found = {case.name: inputs_of(SOFTMAX, case, 5) for case in CASES}
    for inputs in found.values():
        assert inputs[-FRESH:] == [("normal", number) for number in range(FRESH)]
    assert Counter(v for inputs in found.values() for v, _ in inputs[:-FRESH]) == Counter(VARIANTS[1:])
    assert inputs_of(SOFTMAX, CASES[0], 5, FRESH - 1) == found[CASES[0].name][:-1]


def test_the_key_says_which_case_a_variant_is_tried_on():
    on_first = [{v for v, _ in inputs_of(SOFTMAX, CASES[0], key)} - {"normal"} for key in range(len(CASES))]
    assert Counter(v for variants in on_first for v in variants) == Counter(VARIANTS[1:])

"""analysis.stats, against scipy, published examples and simulated experiments without an effect."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy

from analysis import stats

# Differences of heights of Darwin's cross- and self-fertilised maize, in eighths of an inch (Fisher, "The Design of
# Experiments", 1935, chapter III).
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_sign_flips_give_fishers_figure_for_darwins_maize() -> None:
    # Fisher, section 21: of 32768 sign patterns 835 give a greater sum and 28 an equal one.
    assert stats.sign_flips(DARWIN, alternative="greater") == pytest.approx((835 + 28) / 32768)
    assert stats.sign_flips(DARWIN) == pytest.approx(2 * (835 + 28) / 32768)
    assert stats.sign_flips(DARWIN, alternative="less") == pytest.approx(1 - 835 / 32768)


def test_many_pairs_are_sampled_and_the_same_each_time() -> None:
    differences = [0.1 * x for x in DARWIN] * 2
    p = stats.sign_flips(differences, seed=3)
    assert p == stats.sign_flips(differences, seed=3)
    theirs = scipy.stats.permutation_test(
        (np.asarray(differences),), np.mean, permutation_type="samples", n_resamples=20_000, vectorized=False,
        random_state=np.random.default_rng(0),
    )  # fmt: skip
    assert p == pytest.approx(theirs.pvalue, abs=0.003)


def test_wilcoxon_is_that_of_scipy_and_of_its_published_example() -> None:
    # W = 24, p = 0.041 (scipy's documentation, after Darwin's data).
    assert stats.wilcoxon(DARWIN) == pytest.approx(0.041259765625)
    for alternative in ("less", "greater"):
        theirs = scipy.stats.wilcoxon(DARWIN, alternative=alternative).pvalue
        assert stats.wilcoxon(DARWIN, alternative=alternative) == pytest.approx(theirs)
    tied = [1.0, 1.0, -1.0, 2.0, 2.0, 0.0, 3.0, -2.0, 4.0, 4.0]
    theirs = scipy.stats.wilcoxon([d for d in tied if d], method=scipy.stats.PermutationMethod(n_resamples=10_000))
    assert stats.wilcoxon(tied) == pytest.approx(theirs.pvalue)


def test_no_difference_at_all_is_no_evidence() -> None:
    assert stats.sign_flips([0.0] * 7) == stats.wilcoxon([0.0] * 7) == 1.0


def test_holm_as_worked_out_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_a12_counts_pairs() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 9, 13).tolist(), rng.integers(2, 11, 8).tolist()
    wins = sum((x > y) + 0.5 * (x == y) for x, y in itertools.product(first, second))
    assert stats.a12(first, second) == pytest.approx(wins / (13 * 8))
    u = scipy.stats.mannwhitneyu(first, second).statistic
    assert stats.a12(first, second) == pytest.approx(u / (13 * 8))
    assert [stats.magnitude(a) for a in (0.5, 0.45, 0.56, 0.35, 0.2, 1.0)] == [
        "negligible", "negligible", "small", "medium", "large", "large",
    ]  # fmt: skip


def test_means_and_areas() -> None:
    assert stats.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert stats.geometric_mean([1.3, 2.7, 0.4]) == pytest.approx(scipy.stats.gmean([1.3, 2.7, 0.4]))
    assert stats.area_under([1.0, 2.0, 4.0, 4.0], 4.0) == pytest.approx((0 + 0.5 + 1 + 1) / 4)
    assert stats.area_under([3.0, 3.0], 3.0) == pytest.approx(1.0)
    assert stats.area_under([1.0, 1.0], 1.0) == 0.0


def test_area_over_steps_is_that_of_equal_shares_where_they_are() -> None:
    curve = [1.0, 2.0, 4.0, 4.0]
    assert stats.area_under_steps(curve, [0, 1, 2, 3], 4, 4.0) == pytest.approx(stats.area_under(curve, 4.0))
    assert stats.area_under_steps([1.0, 4.0], [0.0, 3.0], 12.0, 4.0) == pytest.approx(9 / 12)
    assert stats.area_under_steps([1.0], [0.0], 12.0, 1.0) == 0.0


def test_pass_at_k_is_the_chance_of_a_draw() -> None:
    assert stats.pass_at(1, 3, 10) == pytest.approx(0.3)
    assert stats.pass_at(2, 3, 10) == pytest.approx(1 - 7 / 10 * 6 / 9)
    assert stats.pass_at(8, 3, 10) == 1.0  # only seven are wrong
    assert stats.pass_at(10, 0, 10) == 0.0


def test_one_group_gives_scipys_bootstrap_interval() -> None:
    values = np.random.default_rng(5).normal(size=40)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", random_state=np.random.default_rng(0))
    mine = stats.interval([values])
    assert mine == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)
    assert mine == stats.interval([values]) != stats.interval([values], seed=1)


def test_the_interval_holds_the_mean_over_tasks_and_seeds() -> None:
    """Random effects of tasks and of seeds: the interval must be as wide as both together ask."""
    rng = np.random.default_rng(11)
    held = narrow = 0
    for repetition in range(150):
        tasks = rng.normal(0, 1, size=10)
        groups = [task + rng.normal(0, 1, size=5) for task in tasks]
        low, high = stats.interval(groups, resamples=500, seed=repetition)
        held += low <= 0 <= high
        flat = np.concatenate(groups)
        narrow += abs(flat.mean()) <= 1.96 * flat.std(ddof=1) / math.sqrt(len(flat))
    assert held >= 0.86 * 150  # 95% in the limit of many tasks; 10 are not so many
    assert narrow < held  # what comes of taking 50 pairs for independent


@pytest.mark.parametrize("test", [stats.sign_flips, stats.wilcoxon])
def test_the_same_arm_twice_is_told_apart_no_more_often_than_stated(test: stats.Test) -> None:
    """400 experiments of 3 tasks x 4 seeds without an effect; tasks differ in spread, a third of the pairs are ties."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(400):
        arms = rng.gamma(2.0, size=(2, 3, 4)) * np.array([0.1, 1.0, 5.0])[None, :, None]
        tied = rng.random((3, 4)) < 1 / 3
        difference = np.where(tied, 0.0, arms[0] - arms[1])
        found += test(difference.ravel().tolist()) < 0.05
    # At a true rate of 5%, more than 32 of 400 come up once in 250 such runs of the test.
    assert found <= 32


def test_holm_keeps_the_rate_of_the_whole_family() -> None:
    rng = np.random.default_rng(9)
    found = raw = 0
    for _ in range(150):
        reference = rng.normal(size=12)
        p = [stats.sign_flips((rng.normal(size=12) - reference).tolist()) for _ in range(4)]
        found += min(stats.holm(p)) < 0.05
        raw += min(p) < 0.05
    assert found <= 15  # of 150: at a true rate of 5%, more come up once in 130
    assert raw > found


def test_an_effect_is_found() -> None:
    rng = np.random.default_rng(2)
    differences = rng.normal(0.5, 0.5, size=30).tolist()
    assert stats.sign_flips(differences) < 1e-3
    assert stats.wilcoxon(differences) < 1e-3
    assert stats.interval([differences[:10], differences[10:20], differences[20:]])[0] > 0

"""Statistics of pairs: coverage, false positives and power on simulated samples of known truth."""

import math

import numpy as np
import pytest

from fitness.gpu.timing import (
    LOOKS,
    BaselineNoise,
    Ratio,
    Stopping,
    counts,
    geometric_mean,
    median_interval,
    noise_floor,
    paired_ratio,
    resolution,
)

SIMULATIONS = 1500


def _pairs(generator, n, speedup=1.0, noise=0.01, outliers=0.05):
    """(candidate, baseline) in microseconds: common drift, own noise on each, a few delayed samples."""
    drift = 100 * np.exp(np.cumsum(generator.normal(0, 0.003, n)))
    delay = np.where(generator.random((2, n)) < outliers, generator.exponential(0.3, (2, n)), 0.0)
    own = generator.normal(0, noise, (2, n))
    return drift * np.exp(own[0]) * (1 + delay[0]) / speedup, drift * np.exp(own[1]) * (1 + delay[1])


def _sequential(candidate, baseline, rule):
    for look in rule.looks:
        ratio = rule.ratio(candidate[:look], baseline[:look])
        if rule.decided(ratio):
            return ratio
    raise AssertionError("the last look always decides")


def test_the_interval_takes_the_order_statistics_of_the_binomial_table():
    # Tables of the sign test: n = 10 -> 2nd and 9th (97.9%), n = 30 -> 10th and 21st (95.7%), n = 6 -> 1st and 6th.
    assert median_interval(range(1, 11)) == (2, 9)
    assert median_interval(range(1, 31)) == (10, 21)
    assert median_interval(range(1, 7)) == (1, 6)
    assert median_interval(range(1, 6)) == (-math.inf, math.inf)


@pytest.mark.parametrize("n", [6, 10, 30, 41])
@pytest.mark.parametrize("shape", ["normal", "exponential", "cauchy"])
def test_the_interval_covers_the_median_whatever_the_shape(n, shape):
    generator = np.random.default_rng(n)
    draw, truth = {
        "normal": (generator.standard_normal, 0.0),
        "exponential": (generator.standard_exponential, math.log(2)),
        "cauchy": (generator.standard_cauchy, 0.0),
    }[shape]
    inside = 0
    for _ in range(SIMULATIONS):
        low, high = median_interval(draw(n))
        inside += low <= truth <= high
    assert inside / SIMULATIONS >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / SIMULATIONS)


def test_equal_kernels_are_called_different_at_most_at_the_stated_level():
    generator, rule = np.random.default_rng(1), Stopping()
    wrong = sum(_sequential(*_pairs(generator, LOOKS[-1]), rule).excludes_one for _ in range(SIMULATIONS))
    assert wrong / SIMULATIONS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / SIMULATIONS)


def test_the_interval_covers_the_truth_wherever_it_stops():
    generator, rule = np.random.default_rng(2), Stopping()
    inside = 0
    for _ in range(SIMULATIONS):
        result = _sequential(*_pairs(generator, LOOKS[-1], speedup=1.02), rule)
        inside += result.low <= 1.02 <= result.high
    assert inside / SIMULATIONS >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / SIMULATIONS)


@pytest.mark.parametrize(("speedup", "found"), [(1.03, 0.95), (1.05, 0.99), (1 / 1.05, 0.99)])
def test_planted_differences_are_found(speedup, found):
    generator, rule = np.random.default_rng(3), Stopping()
    results = [_sequential(*_pairs(generator, LOOKS[-1], speedup=speedup), rule) for _ in range(300)]
    assert sum(counts(r, 1.005) and (r.ratio > 1) == (speedup > 1) for r in results) / 300 >= found


def test_a_clear_difference_stops_at_the_first_look():
    candidate, baseline = _pairs(np.random.default_rng(4), LOOKS[-1], speedup=2.0)
    assert _sequential(candidate, baseline, Stopping()).pairs == LOOKS[0]


def test_no_difference_that_matters_stops_early():
    generator = np.random.default_rng(5)
    candidate, baseline = _pairs(generator, LOOKS[-1], noise=0.0005, outliers=0.0)
    result = _sequential(candidate, baseline, Stopping())
    assert result.pairs == LOOKS[0]
    assert not counts(result, 1.005)


def test_a_difference_below_the_noise_floor_does_not_count():
    surely_faster = Ratio(1.02, 1.015, 1.025, 30)
    assert counts(surely_faster, noise_floor([1.001, 0.99]))
    assert not counts(surely_faster, noise_floor([1.001, 1 / 1.03]))
    assert not counts(Ratio(1.2, 0.99, 1.4, 30), 1.0)
    assert noise_floor([0.5, 1.5]) == pytest.approx(2.0)


def _short(generator, speedup=1.0, sample_us=128.0, offset_us=0.9):
    """Samples of a short kernel in a graph: an offset that one comparison keeps, and noise that follows itself."""
    n = LOOKS[-1]
    drift = np.zeros(2 * n)
    for i, step in enumerate(generator.normal(0, 0.0015, 2 * n)):
        drift[i] = 0.9 * drift[i - 1] + step  # of the clock, from sample to sample
    noise = drift + generator.normal(0, 0.002, 2 * n)
    second = np.arange(n) % 2  # the order alternates
    own, baseline = (noise[2 * np.arange(n) + place] for place in (second, 1 - second))
    offset = generator.uniform(-offset_us, offset_us)
    return (sample_us / speedup) * np.exp(own) + offset, sample_us * np.exp(baseline)


def _significant(pairs, floor):
    return counts(_sequential(*pairs, Stopping()), floor)


@pytest.mark.parametrize("sample_us", [64.0, 128.0, 1000.0])
def test_short_kernels_that_are_equal_are_seldom_called_different(sample_us):
    generator, most = np.random.default_rng(7), 0.05
    pairs = [_short(generator, sample_us=sample_us) for _ in range(400)]
    if sample_us < 200:  # what the resolution is for: the interval alone would call many of these different
        assert sum(_significant(each, 1.0) for each in pairs) / 400 > 2 * most
    assert sum(_significant(each, max(1.005, resolution(sample_us))) for each in pairs) / 400 <= most


@pytest.mark.parametrize("sample_us", [128.0, 1000.0])
def test_two_percent_are_found_of_short_kernels_too(sample_us):
    generator, floor = np.random.default_rng(8), max(1.005, resolution(sample_us))
    found = sum(_significant(_short(generator, 1.02, sample_us), floor) for _ in range(300)) / 300
    assert found >= 0.95


def test_geometric_mean_covers_the_truth():
    generator = np.random.default_rng(6)
    speedups, inside = (1.0, 1.1, 1.5), 0
    truth = math.prod(speedups) ** (1 / 3)
    for _ in range(200):
        cases = [np.divide(*reversed(_pairs(generator, 30, speedup=s))) for s in speedups]
        mean = geometric_mean(cases, generator, resamples=400)
        assert mean.low <= mean.ratio <= mean.high
        inside += mean.low <= truth <= mean.high
    assert inside / 200 >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 200)


def test_bad_samples_are_refused():
    with pytest.raises(ValueError, match="as many"):
        paired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([0.0], [1.0])
    with pytest.raises(ValueError, match="looks"):
        Stopping(looks=(20, 10))
    with pytest.raises(ValueError, match="noise floor"):
        noise_floor([])
    with pytest.raises(ValueError, match="every case"):
        geometric_mean([[]], np.random.default_rng(0))


def test_a_baseline_has_drifted_where_it_takes_a_tenth_more_than_alone():
    noise = BaselineNoise(1.01, 100.0)
    assert noise.drift([105.0, 300.0, 90.0]) == 1
    assert noise.drift([80.0]) == 1
    assert noise.drift([124.0, 90.0, 130.0]) == pytest.approx(1.24)

"""Samples and the interval of their median."""

import time

import numpy
import pytest

from attnscale.case import Timing
from attnscale.measure.timing import first_call_ms, latency_samples_ms, median_interval


def test_samples_are_the_time_of_single_forwards() -> None:
    waits = iter([0.02, 0.01, 0.03])
    timing = Timing(warmup=1, samples=3, max_seconds=5.0)
    samples = latency_samples_ms(lambda: time.sleep(next(waits)), timing, "cpu")
    assert samples == pytest.approx([20, 10, 30], abs=5)


def test_sampling_stops_at_its_ceiling_but_never_without_a_sample() -> None:
    timing = Timing(warmup=1, samples=1000, max_seconds=0.05)
    assert 2 <= len(latency_samples_ms(lambda: time.sleep(0.01), timing, "cpu")) < 20
    short = Timing(warmup=1, samples=1000, max_seconds=1e-9)
    assert len(latency_samples_ms(lambda: None, short, "cpu")) == 1


def test_the_first_call_is_the_first() -> None:
    waits = iter([0.03, 0.0])
    assert first_call_ms(lambda: time.sleep(next(waits)), "cpu") == pytest.approx(30, abs=5)


@pytest.mark.parametrize(("count", "known"), [(1, False), (5, False), (6, True), (7, True), (100, True)])
def test_an_interval_needs_six_samples(count: int, known: bool) -> None:
    median, low, high = median_interval([float(i) for i in range(count)])
    assert median == (count - 1) / 2
    assert (low is not None, high is not None) == (known, known)


@pytest.mark.parametrize("count", [7, 30])
def test_the_interval_covers_the_true_median_at_least_95_per_cent(count: int) -> None:
    """Lognormal, as latencies are: skewed, with its true median at 1."""
    generator = numpy.random.default_rng(0)
    covered = 0
    for _ in range(400):
        _, low, high = median_interval(list(generator.lognormal(0, 0.5, count)))
        assert low is not None
        assert high is not None
        covered += low <= 1.0 <= high
    assert covered / 400 >= 0.93  # 95% less two standard errors of 400 draws

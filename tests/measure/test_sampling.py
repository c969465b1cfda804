"""When windows are settled and when enough was sampled, on series that no device made."""

import itertools
import time
from collections.abc import Callable

import numpy
import pytest

from attnscale.measure import sampling
from attnscale.measure.clocks import Reading
from attnscale.record import Window
from tests.conftest import timing_of

DARK = Reading()


def windows(*ms: float, mhz: int | None = None, power_w: float | None = None) -> list[Window]:
    return [Window(ms=one, sm_clock_mhz=mhz, power_w=power_w) for one in ms]


def test_eight_alike_windows_are_settled_and_seven_are_not() -> None:
    assert sampling.unstable(windows(*[2.0] * 8)) is None
    assert sampling.unstable(windows(*[2.0] * 7)) == "7 windows are too few to tell: 8 are needed"


@pytest.mark.parametrize(
    ("series", "words"),
    [
        (windows(*[1.0] * 4, *[1.02] * 4), "the rolling median moved by +2.0% within 8 windows"),
        (windows(*[1.0] * 4, mhz=1980) + windows(*[1.0] * 4, mhz=1700), "the SM clock moved by -14"),
        (windows(*[1.0] * 4, power_w=300) + windows(*[1.0] * 4, power_w=690), "the power moved by +130"),
    ],
    ids=["median", "clock", "power"],
)
def test_what_still_moves_is_named(series: list[Window], words: str) -> None:
    assert words in str(sampling.unstable(series))


def test_noise_without_a_trend_is_settled() -> None:
    """A clock at its power limit wanders by 2% for ever."""
    assert sampling.unstable(windows(*[1.0, 1.02] * 4, mhz=1700)) is None


def test_settling_ends_as_soon_as_it_is_stable() -> None:
    falling = itertools.chain([3.0, 2.5, 2.2], itertools.repeat(2.0))
    settling = sampling.settle(lambda: next(falling), lambda: DARK, timing_of(settle_seconds=60.0))
    assert settling.settled
    assert settling.why is None
    assert [window.ms for window in settling.windows[-4:]] == [2.0] * 4
    assert len(settling.windows) < 16


def test_a_clock_that_never_settles_is_bounded_and_marked() -> None:
    clock = itertools.count(2000, -100)

    def read() -> Reading:
        time.sleep(0.005)
        return Reading(sm_clock_mhz=max(500, next(clock)) + 500 * (time.perf_counter_ns() % 2))

    slower = itertools.count(1)
    settling = sampling.settle(lambda: 1.1 ** next(slower), read, timing_of(settle_seconds=0.2))
    assert not settling.settled
    assert "moved by" in str(settling.why)
    assert 0.2 <= settling.seconds < 0.5


@pytest.mark.parametrize(
    ("changes", "series", "count", "ended"),
    [
        ({"precision": 0.01, "max_seconds": 60.0}, itertools.repeat(1.0), 6, "precision"),
        ({"min_samples": 9}, itertools.count(1.0), 9, "max_seconds"),
        ({"max_seconds": 60.0}, itertools.count(1.0), sampling.MAX_SAMPLES, "max_samples"),
    ],
    ids=["precision", "max_seconds", "max_samples"],
)
def test_what_ended_a_sampling(
    changes: dict[str, float], series: "itertools.count[float]", count: int, ended: str
) -> None:
    taken, stopped_by = sampling.sample_windows(
        lambda: float(next(series)), lambda: DARK, timing_of(**changes)
    )
    assert (len(taken), stopped_by) == (count, ended)


def test_precision_is_what_it_says() -> None:
    """Of the interval, half the width over the median."""
    generator = numpy.random.default_rng(1)
    taken, stopped_by = sampling.sample_windows(
        lambda: float(generator.normal(1.0, 0.01)),
        lambda: DARK,
        timing_of(precision=0.005, min_samples=6, max_seconds=60.0),
    )
    assert stopped_by == "precision"
    assert sampling.half_width([window.ms for window in taken]) <= 0.005
    assert 6 < len(taken) < 200


def test_a_reading_goes_with_its_window() -> None:
    read = Reading(sm_clock_mhz=1700, power_w=690.5, temperature_c=60, throttle=("sw_power_cap",))
    (window, *_), _ = sampling.sample_windows(lambda: 2.0, lambda: read, timing_of())
    assert (window.sm_clock_mhz, window.power_w, window.temperature_c) == (1700, 690.5, 60)
    assert window.throttle == ["sw_power_cap"]


@pytest.mark.parametrize(("count", "known"), [(1, False), (5, False), (6, True), (7, True), (100, True)])
def test_an_interval_needs_six_samples(count: int, known: bool) -> None:
    median, low, high = sampling.median_interval([float(i) for i in range(count)])
    assert median == (count - 1) / 2
    assert (low is not None, high is not None) == (known, known)


@pytest.mark.parametrize("count", [7, 30])
def test_the_interval_covers_the_true_median_at_least_95_per_cent(count: int) -> None:
    """Lognormal, as latencies are: skewed, with its true median at 1."""
    generator = numpy.random.default_rng(0)
    covered = 0
    for _ in range(400):
        _, low, high = sampling.median_interval(list(generator.lognormal(0, 0.5, count)))
        assert low is not None
        assert high is not None
        covered += low <= 1.0 <= high
    assert covered / 400 >= 0.93  # 95% less two standard errors of 400 draws


def test_stopping_by_precision_costs_little_coverage() -> None:
    """Looking at the interval again and again makes it end early on lucky series; how often is known."""
    generator = numpy.random.default_rng(2)
    draw: Callable[[], float] = lambda: float(generator.normal(1.0, 0.01))  # noqa: E731
    how = timing_of(precision=0.005, min_samples=10, max_seconds=60.0)
    covered = 0
    for _ in range(300):
        taken, _ = sampling.sample_windows(draw, lambda: DARK, how)
        _, low, high = sampling.median_interval([window.ms for window in taken])
        assert low is not None
        assert high is not None
        covered += low <= 1.0 <= high
    assert covered / 300 >= 0.9

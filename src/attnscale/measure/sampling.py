"""When a series of windows is settled, and when enough was sampled: rules without a device.

A window is a stretch of forwards back to back. What a window takes, and what the card does meanwhile,
come from two callables, so that the rules can be tried on any series.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy
from scipy.stats import quantile_test

from attnscale.case import Timing
from attnscale.measure.clocks import Reading
from attnscale.record import Settling, Window

MAX_SAMPLES = 1000
"""Of one kind; the interval of a median is narrow by then, and a record stays readable."""
PRECISION = "precision"
MAX_SECONDS = "max_seconds"
TOO_MANY = "max_samples"

_HALF = 4
"""Windows that are compared with as many before them."""
_STABLE = {"ms": 0.01, "sm_clock_mhz": 0.01, "power_w": 0.05}
"""Largest change of a median from one half to the next, as a fraction. At its power limit a card's clock
wanders by 2% from window to window for ever: what has to end is the trend."""
_NAMES = {"ms": "the rolling median", "sm_clock_mhz": "the SM clock", "power_w": "the power"}

Take = Callable[[], float]
"""Runs one window and gives the mean time of its forwards, milliseconds."""
Read = Callable[[], Reading]


def settle(take: Take, read: Read, timing: Timing) -> Settling:
    """Run windows until they are stable, for at most ``timing.settle_seconds``."""
    windows: list[Window] = []
    began = time.perf_counter()
    why: str | None = "not asked for (timing.settle_seconds=0)"
    while why is not None and time.perf_counter() - began < timing.settle_seconds:
        windows.append(_window(take, read))
        why = unstable(windows)
    return Settling(settled=why is None, why=why, seconds=time.perf_counter() - began, windows=windows)


def unstable(windows: Sequence[Window]) -> str | None:
    """What still changes, or None. A reading that NVML doesn't give is left out."""
    if len(windows) < 2 * _HALF:
        return f"{len(windows)} windows are too few to tell: {2 * _HALF} are needed"
    before, after = windows[-2 * _HALF : -_HALF], windows[-_HALF:]
    for name, most in _STABLE.items():
        old, new = (
            [value for window in half if (value := getattr(window, name)) is not None]
            for half in (before, after)
        )
        if not old or not new:
            continue
        change = statistics.median(new) / statistics.median(old) - 1
        if abs(change) > most:
            return f"{_NAMES[name]} moved by {change:+.1%} within {2 * _HALF} windows"
    return None


def sample_windows(take: Take, read: Read, timing: Timing) -> tuple[list[Window], str]:
    """Windows until their median is known within ``timing.precision``; and what ended it."""
    windows: list[Window] = []
    stop = Stop(timing)
    while (ended := stop.after([window.ms for window in windows])) is None:
        windows.append(_window(take, read))
    return windows, ended


class Stop:
    """The rule that ends a sampling, asked after each sample."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._began = time.perf_counter()
        self._next_look = timing.min_samples

    def after(self, samples: Sequence[float]) -> str | None:
        """precision, max_seconds or max_samples when that is reached, else None."""
        count = len(samples)
        if count < self._timing.min_samples:
            return None
        if count >= self._next_look:
            self._next_look = count + max(1, count // 10)  # the interval takes longer than a sample may
            if half_width(samples) <= self._timing.precision:
                return PRECISION
        if count >= MAX_SAMPLES:
            return TOO_MANY
        return MAX_SECONDS if time.perf_counter() - self._began >= self._timing.max_seconds else None


def half_width(samples: Sequence[float]) -> float:
    """Half the 95% interval of the median over the median; infinite below six samples."""
    median, low, high = median_interval(samples)
    return float("inf") if low is None or high is None else (high - low) / 2 / median


def median_interval(samples: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The median and the ends of its 95% interval by order statistics, which assume no shape.

    The ends are None below six samples, when no pair of them encloses the median that surely.
    Source: Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2; scipy's quantile_test.
    """
    test = quantile_test(samples, q=0, p=0.5)
    interval = test.confidence_interval(confidence_level=0.95)
    known = numpy.isfinite([interval.low, interval.high]).all()
    low, high = (float(interval.low), float(interval.high)) if known else (None, None)
    return float(numpy.median(samples)), low, high


def _window(take: Take, read: Read) -> Window:
    ms = take()
    now = read()
    return Window(
        ms=ms,
        sm_clock_mhz=now.sm_clock_mhz,
        power_w=now.power_w,
        temperature_c=now.temperature_c,
        throttle=list(now.throttle),
    )

"""Samples of one forward: what a caller waits, one at a time, the queue empty before.

On CUDA two events enclose the forward, so host time counts where the GPU waits for it; on a CPU
``perf_counter_ns`` does. The first call is timed apart, because it builds plans and loads kernels.
"""

import time
from collections.abc import Callable, Sequence

import numpy
import torch
from scipy.stats import quantile_test

from attnscale.case import Timing
from attnscale.measure.device import synchronize

Forward = Callable[[], object]


def first_call_ms(forward: Forward, device: str) -> float:
    """Wall time of one forward and of all that its first use sets up, milliseconds."""
    synchronize(device)
    start = time.perf_counter_ns()
    forward()
    synchronize(device)
    return (time.perf_counter_ns() - start) / 1e6


def latency_samples_ms(forward: Forward, timing: Timing, device: str) -> list[float]:
    """``timing.samples`` latencies in the order taken, fewer when ``timing.max_seconds`` ran out."""
    time_one = _cuda_timer() if device == "cuda" else _time_on_cpu
    deadline = time.perf_counter() + timing.max_seconds
    samples: list[float] = []
    while len(samples) < timing.samples and (not samples or time.perf_counter() < deadline):
        samples.append(time_one(forward))
    return samples


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


def _time_on_cpu(forward: Forward) -> float:
    start = time.perf_counter_ns()
    forward()
    return (time.perf_counter_ns() - start) / 1e6


def _cuda_timer() -> Callable[[Forward], float]:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)

    def time_one(forward: Forward) -> float:
        torch.cuda.synchronize()
        start.record()
        forward()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return time_one

"""What a deeper model would cost, from a ladder of depths: each prediction with interval and proof.

A transformer repeats one block, so what a forward takes is ``intercept + slope * layers``: embedding,
head and all else that is there once, and a block. Fitted apart for device_ms and host_ms, which have
nothing to do with each other. A caller waits for the larger of the two and for what does not overlap:
the median, over the ladder, of latency less the larger one. Never one depth scaled, never a log-log
line, for both miss the intercept.

- The variance of a point is that of its own median and of the noise between runs (noise.py) together;
  the latter where it was not measured is taken as 0.5% of device_ms and 5% of host_ms.
- At its power limit a card's clock falls as a model deepens. So the line is fitted to times and to
  cycles (time * clock); the prediction is the mean of the two, cycles at the clock of the deepest
  point, and half of what they differ by is part of its error.
- Interval: 95%, of the line, of one more run at the predicted depth, and of that difference together;
  widened by the error with which the deepest point is predicted from the others.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from attnscale.analyse.line import Line, Points, bend, fitted
from attnscale.analyse.noise import Noise
from attnscale.record import Record, Status

FEWEST = 3
"""Distinct depths: through two, any line is straight."""
_UNKNOWN_NOISE = {"device": 0.005, "host": 0.05, "latency": 0.01}
_PLAIN = ("peak_allocated_bytes", "weights_allocated_bytes", "activations_peak_bytes", "first_call_ms")
_CLOCK_FELL = 1.02
_EXACT = 1e-6
"""Standard error of a number of bytes, as a fraction: what a line of bytes may miss by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One quantity at one depth, of one series."""

    quantity: str
    """Named as a column, with its unit."""
    layers: int
    value: float
    low: float
    """Ends of the 95% interval."""
    high: float
    intercept: float
    slope: float
    """A layer."""
    depths: tuple[int, ...]
    """What it was fitted on."""
    measured: float | None = None
    """At ``layers``, when that was measured; it is not among ``depths``."""
    held_out_error: float | None = None
    """Signed, of the deepest of ``depths`` predicted from the others; None when too few are left."""
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """Signed, of the prediction, as a fraction; None when it was not measured."""
        return None if not self.measured else self.value / self.measured - 1

    @property
    def formula(self) -> str:
        return f"{self.intercept:.4g} + {self.slope:.4g} * layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Cases that differ in their depth alone."""

    name: str
    backend: str
    records: Sequence[Record]
    """Those that ended ok, by depth."""
    dropped: dict[str, int]
    """Status -> how many others there were."""
    out_of_memory: tuple[int, ...]
    """Depths of those among them that ran out of memory."""


class TooFewDepths(ValueError):
    """A series that nothing can be predicted from; the message says what to run."""


def all_series(records: Sequence[Record]) -> list[Series]:
    """In the order first measured. A depth measured twice counts once, the later one."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        fields = record.case_config()
        fixed = sorted((k, repr(v)) for k, v in fields.items() if k not in ("layers", "model"))
        groups.setdefault(f"{record.environment.device_name} {fixed}", []).append(record)
    return [_series(group) for group in groups.values()]


def _series(group: Sequence[Record]) -> Series:
    ok = {r.case.layers: r for r in group if r.outcome.status is Status.OK}
    others = [r.outcome.status.value for r in group if r.outcome.status is not Status.OK]
    first = group[0]
    return Series(
        name=first.slug.replace(f"-l{first.case.layers}-", "-", 1),
        backend=first.case.backend,
        records=[ok[layers] for layers in sorted(ok)],
        dropped={status: others.count(status) for status in dict.fromkeys(others)},
        out_of_memory=tuple(sorted(r.case.layers for r in group if r.outcome.status is Status.OOM)),
    )


def predict(series: Series, layers: int, noise: Noise) -> list[Prediction]:
    """Every quantity that the depths below ``layers`` hold. TooFewDepths when those are not three."""
    ladder = [record for record in series.records if record.case.layers < layers]
    if len(ladder) < FEWEST:
        have = ", ".join(str(record.case.layers) for record in ladder) or "none"
        raise TooFewDepths(
            f"{series.name}: {FEWEST} depths below {layers} are needed to predict it, and there is "
            f"{have}; run it with layers=1,2,4,8"
        )
    truth = next((r for r in series.records if r.case.layers == layers), None)
    found = _predictions(ladder, layers, noise, truth)
    if len(ladder) == FEWEST:
        return found
    deepest = ladder[-1]
    shorter = _predictions(ladder[:-1], deepest.case.layers, noise, deepest)
    errors = {one.quantity: one.error for one in shorter}
    return [_held_against(one, errors.get(one.quantity)) for one in found]


def _held_against(one: Prediction, error: float | None) -> Prediction:
    """With the error of the deepest point, and widened by it: beyond the ladder a line is no better."""
    if error is None:
        return one
    missed = error * one.value
    return replace(
        one,
        low=max(0.0, one.value - math.hypot(one.value - one.low, missed)),
        high=one.value + math.hypot(one.high - one.value, missed),
        held_out_error=error,
    )


def _predictions(
    ladder: Sequence[Record], layers: int, noise: Noise, truth: Record | None
) -> list[Prediction]:
    device, host, latency = (
        _timed(ladder, layers, time, noise, truth) for time in ("device", "host", "latency")
    )
    if device and host:
        latency = _latency(ladder, device, host, truth)
    first = [one for one in (latency, device, host) if one]
    if latency:
        first.append(_throughput(latency, ladder[0], truth))
    if device:
        first += _energy(device, ladder[-1], truth)
    names = (
        "peak_allocated_bytes",
        "weights_allocated_bytes",
        "activations_peak_bytes",
        "first_call_ms",
    )
    return [*first, *(one for name in names for one in _plain(ladder, layers, name, truth))]


def _timed(
    ladder: Sequence[Record], layers: int, time: str, noise: Noise, truth: Record | None
) -> Prediction | None:
    """None where a depth lacks it."""
    values = [_metric(record, f"{time}_ms") for record in ladder]
    if not all(values):
        return None
    sigmas = [
        value * math.hypot(_own_noise(record, time), _run_noise(record, time, noise))
        for record, value in zip(ladder, values, strict=True)
        if value
    ]
    points = Points(x=_depths(ladder), y=numpy.array(values, dtype=float), sigma=numpy.array(sigmas))
    line = fitted(points)
    value, sigma, notes = _at_the_clock(ladder, points, line, layers, time)
    run = value * max(_run_noise(record, time, noise) for record in ladder)
    half = line.quantile * math.hypot(sigma, run * line.scatter)
    return Prediction(
        quantity=f"{time}_ms",
        layers=layers,
        value=value,
        low=max(0.0, value - half),
        high=value + half,
        intercept=line.intercept,
        slope=line.slope,
        depths=_as_ints(points),
        measured=_metric(truth, f"{time}_ms"),
        notes=(*notes, *_bent(points)),
    )


def _at_the_clock(
    ladder: Sequence[Record], points: Points, line: Line, layers: int, time: str
) -> tuple[float, float, list[str]]:
    """Value, its standard error, notes."""
    clocks = [_metric(record, "sm_clock_mhz") for record in ladder]
    by_time, sigma = line.at(layers), line.sigma_at(layers)
    if time != "device" or not all(clocks):
        return by_time, sigma, []
    mhz = numpy.array(clocks, dtype=float)
    cycles = fitted(Points(x=points.x, y=points.y * mhz, sigma=points.sigma * mhz))
    by_cycles = cycles.at(layers) / mhz[-1]
    notes = []
    if mhz.max() / mhz.min() > _CLOCK_FELL:
        notes.append(
            f"the clock went from {mhz[0]:.0f} to {mhz[-1]:.0f} MHz over the ladder; by time it would "
            f"be {by_time:.4g} ms, by cycles {by_cycles:.4g}"
        )
    return (by_time + by_cycles) / 2, math.hypot(sigma, (by_time - by_cycles) / 2), notes


def _latency(
    ladder: Sequence[Record], device: Prediction, host: Prediction, truth: Record | None
) -> Prediction:
    """The larger of the two, and what of a forward does not overlap."""
    rests = [
        (_metric(r, "latency_ms") or 0.0)
        - max(_metric(r, "device_ms") or 0.0, _metric(r, "host_ms") or 0.0)
        for r in ladder
    ]
    rest, spread = statistics.median(rests), (max(rests) - min(rests)) / 2
    longer = device if device.value >= host.value else host
    notes = [*longer.notes]
    if longer is host:
        notes.append("launch-bound: it moves with the speed of the host, from minute to minute")
    elif host.high > device.low:
        notes.append("launching may hold it up: the intervals of device_ms and host_ms overlap")
    return replace(
        longer,
        quantity="latency_ms",
        value=longer.value + rest,
        low=max(0.0, max(device.low, host.low) + rest - spread),
        high=max(device.high, host.high) + rest + spread,
        intercept=longer.intercept + rest,
        measured=_metric(truth, "latency_ms"),
        notes=tuple(notes),
    )


def _throughput(latency: Prediction, record: Record, truth: Record | None) -> Prediction:
    """The tokens of a forward over its latency, whose line it keeps."""
    tokens = record.case.tokens * 1e3
    return replace(
        latency,
        quantity="tokens_per_s",
        value=tokens / latency.value,
        low=tokens / latency.high,
        high=tokens / latency.low if latency.low else tokens / latency.value * 1e3,
        measured=_metric(truth, "tokens_per_s"),
        notes=(),
    )


def _energy(device: Prediction, deepest: Record, truth: Record | None) -> list[Prediction]:
    """Joules a forward: device_ms times the power of the deepest point, nearest to a deep model's."""
    watts = _metric(deepest, "power_w")
    if not watts:
        return []
    joules = watts / 1e3
    ms, power = _metric(truth, "device_ms"), _metric(truth, "power_w")
    return [
        replace(
            device,
            quantity="energy_j",
            value=device.value * joules,
            low=device.low * joules,
            high=device.high * joules,
            intercept=device.intercept * joules,
            slope=device.slope * joules,
            measured=ms * power / 1e3 if ms and power else None,
            notes=(f"at {watts:.0f} W, as drawn at {deepest.case.layers} layers",),
        )
    ]


def _plain(ladder: Sequence[Record], layers: int, name: str, truth: Record | None) -> list[Prediction]:
    """A line of equal weights: bytes have no noise, and that of a first call is not known."""
    known = [record for record in ladder if _metric(record, name)]
    if len(known) < FEWEST:
        return []
    y = numpy.array([_metric(record, name) for record in known], dtype=float)
    points = Points(x=_depths(known), y=y, sigma=_EXACT * y)
    line = fitted(points)
    value = line.at(layers)
    half = line.quantile * math.hypot(line.sigma_at(layers), _EXACT * value * line.scatter)
    return [
        Prediction(
            quantity=name,
            layers=layers,
            value=value,
            low=max(0.0, value - half),
            high=value + half,
            intercept=line.intercept,
            slope=line.slope,
            depths=_as_ints(points),
            measured=_metric(truth, name),
        )
    ]


def _bent(points: Points) -> list[str]:
    term = bend(points)
    if not term:
        return []
    cost = "more" if term > 0 else "less"
    return [f"the ladder is bent: deeper layers cost {cost} than shallow ones, so do not trust a line"]


def _own_noise(record: Record, time: str) -> float:
    """One standard error of a run's median, as a fraction: a quarter of its 95% interval."""
    value, low, high = (_metric(record, f"{time}_{name}ms") for name in ("", "ci_low_", "ci_high_"))
    return 0.0 if not value or low is None or high is None else (high - low) / 4 / value


def _run_noise(record: Record, time: str, noise: Noise) -> float:
    """One standard error between runs, as a fraction."""
    return noise.half_width(record, time) / 2 or _UNKNOWN_NOISE[time]


def _depths(records: Sequence[Record]) -> "numpy.typing.NDArray[numpy.float64]":
    return numpy.array([record.case.layers for record in records], dtype=float)


def _as_ints(points: Points) -> tuple[int, ...]:
    return tuple(int(depth) for depth in points.x)


def _metric(record: Record | None, name: str) -> float | None:
    value = None if record is None else getattr(record.outcome.metrics, name)
    return None if value is None else float(value)

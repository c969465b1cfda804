"""Ladders whose truth is known: lines, noise, falling clocks, launch-bound shapes, bends."""

import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from attnscale.analyse.depth import Prediction, TooFewDepths, all_series, predict
from attnscale.analyse.noise import Noise, Spread
from attnscale.case import Case
from attnscale.record import Kind, Record, Status

Make = Callable[..., Record]
SPREAD = Spread(half_width=0.01, drift=0.0, sentinels=1, runs=4)
NOISE = Noise(by_kind={kind: {"device": SPREAD, "host": SPREAD, "latency": SPREAD} for kind in Kind})


@pytest.fixture
def at(make_record: Make, make_case: Callable[..., Case]) -> Make:
    """A record of a depth. Device 1 + 2 a layer, host 0.5 + 0.2, latency 0.05 above the larger."""

    def made(layers: int, **changes: Any) -> Record:
        axes = {name: changes.pop(name) for name in ("backend", "seq") if name in changes}
        device = changes.pop("device_ms", 1 + 2 * layers)
        host = changes.pop("host_ms", 0.5 + 0.2 * layers)
        case = make_case(**{"device": "cuda", "layers": layers, "backend": "flash"} | axes)
        record = make_record(
            case, latency_ms=max(device, host) + 0.05, device_ms=device, host_ms=host,
            peak_allocated_bytes=1000 + 500 * layers,
        )  # fmt: skip
        update = {"power_w": 600.0, "first_call_ms": 40.0 + layers} | changes
        metrics = record.outcome.metrics.model_copy(update=update)
        return record.model_copy(
            update={"outcome": record.outcome.model_copy(update={"metrics": metrics})}
        )

    return made


def predictions(records: list[Record], layers: int = 80) -> dict[str, Prediction]:
    (series,) = all_series(records)
    return {one.quantity: one for one in predict(series, layers, NOISE)}


def test_a_straight_ladder_is_predicted_exactly(at: Make) -> None:
    found = predictions([at(depth) for depth in (1, 2, 4, 8)])
    values = {name: round(one.value, 6) for name, one in found.items()}
    assert values == {
        "device_ms": 161.0,
        "host_ms": 16.5,
        "latency_ms": 161.05,
        "tokens_per_s": round(32 / 161.05 * 1e3, 6),
        "energy_j": 96.6,
        "peak_allocated_bytes": 41_000.0,
        "first_call_ms": 120.0,
    }
    device = found["device_ms"]
    assert device.formula == "1 + 2 * layers"
    assert device.depths == (1, 2, 4, 8)
    assert device.held_out_error == pytest.approx(0.0, abs=1e-9)
    assert (device.measured, device.error, device.notes) == (None, None, ())


def test_neither_one_depth_scaled_nor_a_log_log_line(at: Make) -> None:
    records = [at(depth, device_ms=10 + 0.4 * depth) for depth in (1, 2, 4, 8)]
    assert predictions(records)["device_ms"].value == pytest.approx(42.0)  # not 832, not 17


def test_what_was_measured_there_stands_beside_it_and_is_not_fitted(at: Make) -> None:
    records = [at(depth) for depth in (1, 2, 4, 8)] + [at(80, device_ms=170.0)]
    device = predictions(records)["device_ms"]
    assert (device.depths, device.measured) == ((1, 2, 4, 8), 170.0)
    assert device.error == pytest.approx(161 / 170 - 1)


@pytest.mark.parametrize("depths", [(), (1,), (1, 8), (1, 8, 80, 90)])
def test_fewer_than_three_depths_below_are_refused_with_what_to_run(
    at: Make, depths: tuple[int, ...]
) -> None:
    records = [at(depth) for depth in depths] or [at(80)]
    (series,) = all_series(records)
    with pytest.raises(
        TooFewDepths, match=r"3 depths below 80 are needed .* run it with layers=1,2,4,8"
    ):
        predict(series, 80, NOISE)


def test_three_depths_have_no_held_out_one(at: Make) -> None:
    assert predictions([at(depth) for depth in (2, 4, 8)])["device_ms"].held_out_error is None


def test_intervals_hold_the_truth_as_often_as_they_say(at: Make) -> None:
    """Runs with 0.5% of noise between them, which is what half a half-width of 1% says."""
    rng = random.Random(0)
    inside, widths = 0, []
    for _ in range(400):
        records = [at(n, device_ms=(1 + 2 * n) * rng.gauss(1, 0.005)) for n in (1, 2, 4, 8)]
        truth = 161 * rng.gauss(1, 0.005)
        device = predictions(records)["device_ms"]
        inside += device.low <= truth <= device.high
        widths.append((device.high - device.low) / 2 / device.value)
    assert inside / 400 >= 0.94
    assert statistics.median(widths) < 0.025


def test_scatter_beyond_the_noise_widens(at: Make) -> None:
    calm = predictions([at(n) for n in (1, 2, 4, 8)])["device_ms"]
    odd = predictions([at(n, device_ms=(1 + 2 * n) * (1.08 if n == 4 else 1)) for n in (1, 2, 4, 8)])
    wide = odd["device_ms"]
    assert wide.high - wide.low > 3 * (calm.high - calm.low)


def test_a_falling_clock_is_corrected_and_widens(at: Make) -> None:
    """The same cycles at a clock that falls until 8 layers and stays."""
    clocks = {1: 1980, 2: 1900, 4: 1800, 8: 1700, 80: 1700}
    records = [
        at(n, device_ms=(1 + 2 * n) * 1700 / clocks[n], sm_clock_mhz=clocks[n]) for n in (1, 2, 4, 8)
    ]
    device = predictions(records)["device_ms"]
    assert device.low < 161.0 < device.high
    assert "the clock went from 1980 to 1700 MHz" in device.notes[0]
    steady = predictions([at(n, sm_clock_mhz=1700) for n in (1, 2, 4, 8)])["device_ms"]
    assert device.high - device.low > steady.high - steady.low
    assert steady.notes == ()


def test_launch_bound_follows_the_host_and_says_so(at: Make) -> None:
    records = [at(n, device_ms=0.1 + 0.05 * n) for n in (1, 2, 4, 8)]
    latency = predictions(records)["latency_ms"]
    assert latency.value == pytest.approx(16.55)
    assert "launch-bound" in latency.notes[-1]


def test_what_is_launch_bound_when_shallow_may_not_be_when_deep(at: Make) -> None:
    records = [at(n, device_ms=0.1 + 0.3 * n, host_ms=2 + 0.2 * n) for n in (1, 2, 4, 8)]
    latency = predictions(records)["latency_ms"]
    assert latency.value == pytest.approx(24.15, rel=0.01)
    assert not any("launch-bound" in note for note in latency.notes)


def test_a_bend_is_said(at: Make) -> None:
    records = [at(n, device_ms=1 + 2 * n + 0.1 * n**2) for n in (1, 2, 4, 8)]
    (note,) = predictions(records)["device_ms"].notes
    assert "deeper layers cost more" in note


def test_series_differ_in_all_but_depth(at: Make) -> None:
    records = [
        at(n, backend=name, seq=seq) for n in (1, 2) for name in ("flash", "math") for seq in (16, 32)
    ]
    found = all_series(records)
    assert [(one.backend, len(one.records)) for one in found] == [("flash", 2)] * 2 + [("math", 2)] * 2
    assert found[0].name == "gpt-flash-s16-b2-h4-fp32-cuda"


def test_others_are_dropped_and_counted(
    at: Make, make_record: Make, make_case: Callable[..., Case]
) -> None:
    oom = make_record(make_case(device="cuda", layers=16, backend="flash"), status=Status.OOM)
    (series,) = all_series([at(1), at(2), at(4), oom])
    assert series.dropped == {"oom": 1}
    assert predict(series, 80, NOISE)[0].depths == (1, 2, 4)


def test_a_cpu_has_latency_alone(make_record: Make, make_case: Callable[..., Case]) -> None:
    records = [make_record(make_case(layers=n), latency_ms=1.0 + n) for n in (1, 2, 4)]
    found = predictions(records, 10)
    assert set(found) == {"latency_ms", "tokens_per_s", "first_call_ms"}
    assert found["latency_ms"].value == pytest.approx(11.0)


def test_the_fit_is_scipys(at: Make) -> None:
    import numpy
    from scipy.optimize import curve_fit

    from attnscale.analyse.line import Points, fitted

    x = numpy.array([1.0, 2.0, 4.0, 8.0])
    y, sigma = numpy.array([3.1, 4.8, 9.2, 16.9]), numpy.array([0.1, 0.2, 0.1, 0.3])
    line = fitted(Points(x=x, y=y, sigma=sigma))
    assert line.scatter == 1, "as much as chance makes it"
    theirs, covariance = curve_fit(lambda n, a, b: a + b * n, x, y, sigma=sigma, absolute_sigma=True)
    assert (line.intercept, line.slope) == pytest.approx(tuple(theirs))
    assert line.covariance == pytest.approx(covariance)
    scattered = fitted(Points(x=x, y=y, sigma=sigma / 10))
    assert scattered.scatter > 2
    unscaled = curve_fit(lambda n, a, b: a + b * n, x, y, sigma=sigma / 10)[1]
    assert scattered.covariance == pytest.approx(unscaled), "as scipy does it without absolute_sigma"

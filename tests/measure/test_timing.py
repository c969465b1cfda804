"""Three times of a forward, on a CPU and with the GPU's parts played by fakes; the real ones below."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnscale.case import Timing
from attnscale.measure import timing
from attnscale.measure.clocks import Clocks
from attnscale.measure.sampling import settle
from tests.conftest import TIMING, timing_of

CPU = Clocks("cpu")


def test_latencies_are_the_time_of_single_forwards() -> None:
    waits = iter([0.02, 0.01, 0.03])
    three = timing_of(min_samples=3)
    latency = timing.latencies(lambda: time.sleep(next(waits)), three, "cpu")
    assert latency.waited == pytest.approx([20, 10, 30], abs=5)
    assert latency.host == []
    assert latency.stopped_by == "max_seconds"


def test_the_first_call_is_the_first() -> None:
    waits = iter([0.03, 0.0])
    assert timing.first_call_ms(lambda: time.sleep(next(waits)), "cpu") == pytest.approx(30, abs=5)


def test_a_cpu_settles_in_windows_of_50_ms() -> None:
    rules = timing_of(settle_seconds=2.0)
    windows = timing.windows_of(lambda: time.sleep(0.005), rules, "cpu")
    settling = settle(windows.warm, CPU.read, rules)
    assert settling.settled
    assert len(settling.windows) >= 8
    assert 0.3 < settling.seconds < 2.0
    assert settling.windows[0].ms == pytest.approx(5, abs=2)


@pytest.mark.parametrize(
    ("intervals", "length"),
    [
        ([], 0),
        ([(5, 10)], 5),
        ([(20, 30), (0, 10)], 20),
        ([(0, 10), (5, 15)], 15),
        ([(0, 100), (10, 20), (30, 40)], 100),
        ([(0, 10), (10, 20)], 20),
    ],
    ids=["none", "one", "unsorted", "overlapping", "enclosed", "touching"],
)
def test_overlapping_kernels_count_once(intervals: list[tuple[int, int]], length: int) -> None:
    assert timing.union_ns(intervals) == length


def _device_time(
    forward: timing.Forward, rules: Timing, clocks: Clocks, *, settled: bool = False
) -> timing.DeviceTime:
    windows = timing.windows_of(forward, rules, "cuda")
    if settled:
        settle(windows.warm, clocks.read, rules)
    return timing.device_time(windows, rules, clocks.read)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that refuses every capture."""

    def refuse(*_: object) -> None:
        raise timing.CaptureRefused("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(timing, "_captured", refuse)
    monkeypatch.setattr(timing, "QueuedWindows", lambda *_: None)
    monkeypatch.setattr(timing, "first_call_ms", lambda *_: 1.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.usefixtures("refused")
def test_a_refused_capture_falls_back_to_kernels_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "kernels_ms", lambda _: 2.5)
    device = _device_time(lambda: None, TIMING, CPU)
    assert device.timed_by == "profiler"
    assert "not permitted when stream is capturing" in str(device.capture_refused)
    assert [window.ms for window in device.windows] == [2.5] * TIMING.min_samples
    assert device.null is None


class FakeProfiler:
    """torch.profiler.profile where CUPTI gives nothing, or says so."""

    profiler = None

    def __init__(self, error: str | None) -> None:
        self._error = error

    def __enter__(self) -> "FakeProfiler":
        return self

    def __exit__(self, *_: object) -> None:
        if self._error:
            raise RuntimeError(self._error)


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "the profiler saw no kernel: CUPTI is taken"),
        ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS\nmore", "failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"),
    ],
    ids=["silent", "loud"],
)
def test_with_cupti_taken_device_ms_is_null_with_both_reasons(
    monkeypatch: pytest.MonkeyPatch, error: str | None, words: str
) -> None:
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: FakeProfiler(error))
    device = _device_time(lambda: None, TIMING, CPU)
    assert device.windows == ()
    assert words in str(device.null)
    assert "stream is capturing" in str(device.null)
    assert device.timed_by is None


@pytest.mark.usefixtures("refused")
def test_a_cold_cache_needs_a_graph() -> None:
    device = _device_time(lambda: None, timing_of(flush_l2=True), CPU)
    assert str(device.null).startswith("timing.flush_l2=true needs a CUDA graph")


gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def product() -> Callable[[], torch.Tensor]:
    """A matrix product of about 0.2 ms."""
    a, b, out = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return lambda: torch.matmul(a, b, out=out)


def _device_ms(forward: Callable[[], Any], **changes: Any) -> timing.DeviceTime:
    quick = timing_of(settle_seconds=1.0, precision=0.005, min_samples=10, max_seconds=1.0, **changes)
    with torch.inference_mode():
        forward()
        return _device_time(forward, quick, Clocks("cuda"), settled=True)


def _median(device: timing.DeviceTime) -> float:
    return sorted(window.ms for window in device.windows)[len(device.windows) // 2]


class TestOnAGpu:
    pytestmark = gpu

    def test_a_graph_agrees_with_triton(self, product: Callable[[], torch.Tensor]) -> None:
        from triton.testing import do_bench_cudagraph

        device = _device_ms(product)
        assert device.timed_by == "graph"
        theirs = do_bench_cudagraph(product, rep=500, return_mode="median")
        assert _median(device) == pytest.approx(theirs, rel=0.03)  # clocks move between the two

    def test_a_data_dependent_forward_is_timed_by_its_kernels(
        self, product: Callable[[], torch.Tensor]
    ) -> None:
        device = _device_ms(lambda: product()[0, 0].item())
        assert device.timed_by == "profiler"
        assert "captur" in str(device.capture_refused)
        assert _median(device) == pytest.approx(_median(_device_ms(product)), rel=0.1)

    def test_the_device_is_whole_after_a_refused_capture(
        self, product: Callable[[], torch.Tensor]
    ) -> None:
        _device_ms(lambda: product()[0, 0].item())
        assert _device_ms(product).timed_by == "graph"

    def test_windows_carry_clock_power_and_temperature(
        self, product: Callable[[], torch.Tensor]
    ) -> None:
        window = _device_ms(product).windows[-1]
        assert 300 < (window.sm_clock_mhz or 0) < 4000
        assert 20 < (window.power_w or 0) < 2000
        assert 10 < (window.temperature_c or 0) < 110
        assert "gpu_idle" not in window.throttle

    def test_a_flushed_cache_makes_a_small_forward_slower(self) -> None:
        x = torch.randn(2**22, device="cuda")  # 16 MiB, within any L2 of a data-centre card
        y = torch.empty_like(x)
        warm = _median(_device_ms(lambda: y.copy_(x)))
        cold = _median(_device_ms(lambda: y.copy_(x), flush_l2=True))
        assert cold > 1.2 * warm

    def test_nothing_is_held_afterwards(self, product: Callable[[], torch.Tensor]) -> None:
        before = torch.cuda.memory_allocated()
        _device_ms(lambda: product() + 1)
        assert torch.cuda.memory_allocated() <= before + 2**25  # cuBLAS keeps its workspace

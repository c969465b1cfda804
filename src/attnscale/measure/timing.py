"""Three times of one forward: the GPU's own, the host's to launch it, and what a caller waits.

- device_ms: the forward captured as a CUDA graph and replayed back to back in windows of about 50 ms.
  The next window is queued before the last has ended, so the card never idles and runs at the clock
  that a deeper model would sustain. Short forwards are captured several times in one graph, for the
  card pauses some microseconds between graphs. Where capture is refused, the union of the kernels'
  intervals in profiled passes.
- latency_ms, host_ms: of the same single forwards, the queue empty before. Two CUDA events enclose
  the forward, and perf_counter_ns its launches; on a CPU perf_counter_ns alone.
- first_call_ms: apart, because it builds plans and loads kernels.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from attnscale.case import Timing
from attnscale.measure.clocks import Clocks
from attnscale.measure.device import synchronize
from attnscale.measure.sampling import Stop, sample_windows, settle
from attnscale.record import Settling, Window

Forward = Callable[[], object]
Pairs = list[tuple[torch.cuda.Event, torch.cuda.Event]]

GRAPH = "graph"
PROFILER = "profiler"

_WINDOW_MS = 50.0
_GRAPH_MS = 2.0
"""A graph lasts this long at least, by holding a short forward several times."""
_MOST_IN_A_GRAPH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Windows of the device's own time; empty with ``null`` for a reason."""

    windows: Sequence[Window] = ()
    timed_by: str | None = None
    stopped_by: str | None = None
    capture_refused: str | None = None
    null: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Single forwards, milliseconds. ``host`` is empty on a CPU."""

    waited: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    stopped_by: str


class CaptureRefused(Exception):
    """The forward can't be a CUDA graph; the message says why."""


class NoKernels(Exception):
    """The profiler saw no kernel; the message says why that may be."""


def first_call_ms(forward: Forward, device: str) -> float:
    """Wall time of one forward and of all that its first use sets up, milliseconds."""
    synchronize(device)
    start = time.perf_counter_ns()
    forward()
    synchronize(device)
    return (time.perf_counter_ns() - start) / 1e6


def device_time(forward: Forward, timing: Timing, clocks: Clocks) -> tuple[Settling, DeviceTime]:
    """Settle a GPU and sample ``forward``'s own time on it."""
    try:
        graph, times = _captured(forward)
    except CaptureRefused as refused:
        return _profiled_time(forward, timing, clocks, str(refused))
    flush = _flush(timing)
    take = QueuedWindows(graph.replay, _replay_ms(graph), forwards=times, flush=flush)
    settling = settle(take, clocks.read, timing)
    windows, ended = sample_windows(take, clocks.read, timing)
    torch.cuda.synchronize()
    return settling, DeviceTime(windows=windows, timed_by=GRAPH, stopped_by=ended)


def settle_cpu(forward: Forward, timing: Timing, clocks: Clocks) -> Settling:
    """Settle a CPU: forwards in windows, until their rolling median is stable."""
    count = max(1, math.ceil(_WINDOW_MS / max(_time_on_cpu(forward), 1e-3)))

    def take() -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            forward()
        return (time.perf_counter_ns() - start) / 1e6 / count

    return settle(take, clocks.read, timing)


def latencies(forward: Forward, timing: Timing, device: str) -> Latency:
    """Single forwards, the queue empty before each, until the median of the latencies is known."""
    stop = Stop(timing)
    latency = Latency(stopped_by="")
    time_one = _cuda_timer(latency.host, _flush(timing)) if device == "cuda" else _time_on_cpu
    while (ended := stop.after(latency.waited)) is None:
        latency.waited.append(time_one(forward))
    return Latency(waited=latency.waited, host=latency.host, stopped_by=ended)


class QueuedWindows:
    """Windows of back-to-back work, each queued before the one before it has ended."""

    def __init__(
        self, run: Forward, run_ms: float, *, forwards: int = 1, flush: Forward | None = None
    ) -> None:
        self._run = run
        self._runs = max(1, round(_WINDOW_MS / run_ms))
        self._forwards = forwards
        self._flush = flush
        self._queue: deque[Pairs] = deque()

    def __call__(self) -> float:
        """Wait for the oldest window; its mean time of one forward, milliseconds."""
        while len(self._queue) < 2:
            self._queue.append(self._enqueued())
        pairs = self._queue.popleft()
        pairs[-1][1].synchronize()
        total = sum(start.elapsed_time(end) for start, end in pairs)
        return float(total) / (self._runs * self._forwards)

    def _enqueued(self) -> Pairs:
        if self._flush is None:
            start, end = _events()
            start.record()
            for _ in range(self._runs):
                self._run()
            end.record()
            return [(start, end)]
        pairs = [_events() for _ in range(self._runs)]
        for start, end in pairs:
            self._flush()
            start.record()
            self._run()
            end.record()
        return pairs


def _captured(forward: Forward) -> tuple[torch.cuda.CUDAGraph, int]:
    """The forward as a graph, and how many times it is in there."""
    graph = _capture(forward, 1)
    times = min(math.ceil(_GRAPH_MS / _replay_ms(graph)), _MOST_IN_A_GRAPH)
    if times == 1:
        return graph, 1
    del graph  # its memory is that of a whole forward
    return _capture(forward, times), times


def _capture(forward: Forward, times: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(times):
                forward()
    except RuntimeError as error:
        torch.cuda.synchronize()  # raises again where more than the capture is lost
        first = error.__context__ or error  # ending a broken capture raises too
        raise CaptureRefused(_one_line(first)) from error
    return graph


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    graph.replay()
    start, end = _events()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return max(float(start.elapsed_time(end)), 1e-3)


def _profiled_time(
    forward: Forward, timing: Timing, clocks: Clocks, refused: str
) -> tuple[Settling, DeviceTime]:
    eager_ms = first_call_ms(forward, "cuda")
    settling = settle(QueuedWindows(forward, eager_ms), clocks.read, timing)
    torch.cuda.synchronize()
    if timing.flush_l2:
        why = f"timing.flush_l2=true needs a CUDA graph, and capture was refused: {refused}"
        return settling, DeviceTime(capture_refused=refused, null=why)
    try:
        windows, ended = sample_windows(lambda: kernels_ms(forward), clocks.read, timing)
    except NoKernels as error:
        why = f"capture was refused ({refused}), and {error}"
        return settling, DeviceTime(capture_refused=refused, null=why)
    return settling, DeviceTime(
        windows=windows, timed_by=PROFILER, stopped_by=ended, capture_refused=refused
    )


def kernels_ms(forward: Forward) -> float:
    """Time that at least one kernel or copy of one forward ran, from a profiled pass, milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            forward()
            torch.cuda.synchronize()
    except RuntimeError as error:
        raise NoKernels(f"the profiler failed: {_one_line(error)}") from error
    results = profiler.profiler.kineto_results if profiler.profiler else None
    intervals = [
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in (results.events() if results else ())
        if event.device_type().name == "CUDA"
    ]
    if not intervals:
        raise NoKernels("the profiler saw no kernel: CUPTI is taken by another tool, or forbidden")
    return union_ns(intervals) / 1e6


def union_ns(intervals: Sequence[tuple[int, int]]) -> int:
    """Length of the union of [start, end) intervals, in any order."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _flush(timing: Timing) -> Forward | None:
    """Overwrites twice what the L2 cache holds; None when it is not asked for."""
    if not timing.flush_l2:
        return None
    size = 2 * torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(size, dtype=torch.int8, device="cuda").zero_


def _time_on_cpu(forward: Forward) -> float:
    start = time.perf_counter_ns()
    forward()
    return (time.perf_counter_ns() - start) / 1e6


def _cuda_timer(host_ms: list[float], flush: Forward | None) -> Callable[[Forward], float]:
    start, end = _events()

    def time_one(forward: Forward) -> float:
        if flush is not None:
            flush()
        torch.cuda.synchronize()
        start.record()
        began = time.perf_counter_ns()
        forward()
        host_ms.append((time.perf_counter_ns() - began) / 1e6)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return time_one


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _one_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__

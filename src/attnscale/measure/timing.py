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
from attnscale.measure.device import synchronize
from attnscale.measure.sampling import Read, Stop, Take, sample_windows
from attnscale.record import Window

Forward = Callable[[], object]
Pairs = list[tuple[torch.cuda.Event, torch.cuda.Event]]

NO_GPU = "device is cpu: there is no queue, the host computes"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How a forward's windows are run. It holds the graph's memory, and so a forward's activations."""

    warm: Take
    """One that keeps the device busy, for settling."""
    sample: Take | None
    """One of device time; None with ``null`` for a reason."""
    timed_by: str | None = None
    capture_refused: str | None = None
    null: str | None = None


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


def windows_of(forward: Forward, timing: Timing, device: str) -> Windows:
    """Prepare to settle on ``forward`` and to sample its device time."""
    if device == "cpu":
        return Windows(warm=_cpu_windows(forward), sample=None, null=NO_GPU)
    try:
        graph, times = _captured(forward)
    except CaptureRefused as error:
        return _without_graph(forward, timing, str(error))
    take = QueuedWindows(graph.replay, _replay_ms(graph), forwards=times, flush=_flush(timing))
    return Windows(warm=take, sample=take, timed_by=GRAPH)


def device_time(windows: Windows, timing: Timing, read: Read) -> DeviceTime:
    """Sample a settled device."""
    refused = windows.capture_refused
    if windows.sample is None:
        return DeviceTime(capture_refused=refused, null=windows.null)
    try:
        taken, ended = sample_windows(windows.sample, read, timing)
    except NoKernels as error:
        why = f"capture was refused ({refused}), and {error}"
        return DeviceTime(capture_refused=refused, null=why)
    torch.cuda.synchronize()
    return DeviceTime(
        windows=taken, timed_by=windows.timed_by, stopped_by=ended, capture_refused=refused
    )


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


def _without_graph(forward: Forward, timing: Timing, refused: str) -> Windows:
    warm = QueuedWindows(forward, first_call_ms(forward, "cuda"))
    if timing.flush_l2:
        why = f"timing.flush_l2=true needs a CUDA graph, and capture was refused: {refused}"
        return Windows(warm=warm, sample=None, capture_refused=refused, null=why)
    return Windows(
        warm=warm, sample=lambda: kernels_ms(forward), timed_by=PROFILER, capture_refused=refused
    )


def _cpu_windows(forward: Forward) -> Take:
    count = max(1, math.ceil(_WINDOW_MS / max(_time_on_cpu(forward), 1e-3)))

    def take() -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            forward()
        return (time.perf_counter_ns() - start) / 1e6 / count

    return take


def kernels_ms(forward: Forward) -> float:
    """Time that at least one kernel or copy of one forward ran, from a profiled pass, milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()  # whatever was queued before is not of this forward
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

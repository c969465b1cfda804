"""A profiler's trace, in Chrome's format, to a Profile.

The trace holds some forwards, each within a range ``attnscale.step``, and within it a range
``attnscale/PATH`` for each module that runs. A kernel is attributed by its correlation: to the call that
launched it, and by that call's thread and time to the ranges and operators around it. Ranges that the
profiler draws on the device's side (gpu_user_annotation) are not used: only the innermost gets one.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnscale.profile import DeviceLimits, Kernel, Launch, Profile

STEP = "attnscale.step"
MODULE = "attnscale/"
"""Label of a module's range: this and its path."""

_DEVICE = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_LAUNCHING = ("cuda_runtime", "cuda_driver")
Event = Mapping[str, Any]


class TraceLost(Exception):
    """The trace can't prove what ran; the message says why."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One piece of work of one step."""

    kernel: Kernel
    module: str
    op: str
    at_us: float
    us: float
    launch_us: float


@dataclass(slots=True)
class _Range:
    """An event on the CPU, what encloses it, and the operators right within it."""

    event: Event
    parents: tuple["_Range", ...]
    children: list["_Range"] = field(default_factory=list)
    merged: bool = False
    """Whether it is the only child of an operator of its name, an overload that calls another: then the
    two are one, as in torch's own tables."""

    @property
    def path(self) -> tuple["_Range", ...]:
        return tuple(one for one in (*self.parents, self) if not one.merged)

    @property
    def self_us(self) -> float:
        children = self.children
        while len(children) == 1 and children[0].merged:
            children = children[0].children
        return float(self.event["dur"]) - sum(float(one.event["dur"]) for one in children)


def profile_of(trace: Mapping[str, Any], *, on_cpu: bool) -> Profile:
    """What its steps ran. TraceLost when they differ, or nothing ran."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    steps = list(_steps(events, _cpu_work if on_cpu else _device_work))
    if not steps:
        raise TraceLost("the trace holds no forward")
    if not all(steps):
        if any(event.get("cat") in _DEVICE for event in events):
            raise TraceLost("kernels were seen, but launched outside a profiled forward")
        raise TraceLost("the profiler saw no kernel: CUPTI is taken by another tool, or forbidden")
    if len({tuple((one.kernel, one.module) for one in step) for step in steps}) > 1:
        counts = ", ".join(str(len(step)) for step in steps)
        raise TraceLost(f"the profiled forwards did not run the same kernels: {counts} of them")
    return _joined(steps, None if on_cpu else _limits(trace))


def _joined(steps: Sequence[Sequence[_Seen]], limits: DeviceLimits | None) -> Profile:
    """One forward of all: medians of the times, places of the last."""
    last = steps[-1]
    tables: tuple[dict[Any, int], ...] = ({}, {}, {})
    began = min(one.at_us for one in last)
    launches = []
    for each in zip(*steps, strict=True):
        one = each[-1]
        keys = (one.kernel, one.module, one.op)
        kernel, module, op = (
            table.setdefault(key, len(table)) for table, key in zip(tables, keys, strict=True)
        )
        launches.append(
            Launch(
                kernel=kernel,
                module=module,
                op=op,
                at_us=round(one.at_us - began, 3),
                us=round(statistics.median(same.us for same in each), 3),
                launch_us=round(statistics.median(same.launch_us for same in each), 3),
            )
        )
    kernels, modules, ops = (list(table) for table in tables)
    return Profile(
        steps=len(steps), kernels=kernels, modules=modules, ops=ops, launches=launches, limits=limits
    )


def _steps(events: Sequence[Event], work: Any) -> Iterator[list[_Seen]]:
    """What each step ran, in the order launched."""
    ranges = _ranges(event for event in events if event.get("cat") in ("user_annotation", "cpu_op"))
    found: dict[float, list[_Seen]] = {
        float(one.event["ts"]): [] for one in ranges if one.event["name"] == STEP
    }
    for path, seen in work(events, ranges):
        step = next((one for one in path if one.event["name"] == STEP), None)
        if step is not None:
            found[float(step.event["ts"])].append(seen)
    yield from (found[began] for began in sorted(found))


def _device_work(
    events: Sequence[Event], ranges: Sequence[_Range]
) -> Iterator[tuple[tuple[_Range, ...], _Seen]]:
    calls = {_correlation(event): event for event in events if event.get("cat") in _LAUNCHING}
    done = _launched([event for event in events if event.get("cat") in _DEVICE], calls)
    done.sort(key=lambda event: float(calls[_correlation(event)]["ts"]))
    around = _Enclosing(ranges)
    for event in done:
        call = calls[_correlation(event)]
        path = around.of(call)
        yield (
            path,
            _Seen(
                kernel=_kernel(event, str(call["name"])),
                module=_module(path),
                op=_op(path),
                at_us=float(event["ts"]),
                us=float(event["dur"]),
                launch_us=float(call["dur"]),
            ),
        )


def _launched(done: Sequence[Event], calls: Mapping[Any, Event]) -> list[Event]:
    """Those whose launch is in the trace. What was queued before the trace began ran first, and is no
    part of it; any other that lacks a launch means that the trace lost events."""
    known = [event for event in done if _correlation(event) in calls]
    first = min((float(event["ts"]) for event in known), default=math.inf)
    lost = len([e for e in done if _correlation(e) not in calls and float(e["ts"]) > first])
    if lost:
        raise TraceLost(f"{lost} of {len(done)} kernels have no launch in the trace")
    return known


def _cpu_work(
    _: Sequence[Event], ranges: Sequence[_Range]
) -> Iterator[tuple[tuple[_Range, ...], _Seen]]:
    """Operators by their self time: what their children took is the children's."""
    for one in ranges:
        if one.event["cat"] == "cpu_op":
            yield (
                one.path,
                _Seen(
                    kernel=Kernel(name=str(one.event["name"]), kind="cpu_op"),
                    module=_module(one.path),
                    op=_op(one.path),
                    at_us=float(one.event["ts"]),
                    us=one.self_us,
                    launch_us=0.0,
                ),
            )


def _ranges(events: Iterable[Event]) -> list[_Range]:
    """Nested by thread and time, in order of their beginning."""
    ordered = sorted(events, key=lambda event: (event["tid"], float(event["ts"]), -float(event["dur"])))
    found: list[_Range] = []
    open_: list[_Range] = []
    for event in ordered:
        while open_ and not _encloses(open_[-1].event, event):
            open_.pop()
        one = _Range(event, tuple(open_))
        parent = next((up for up in reversed(open_) if up.event["cat"] == "cpu_op"), None)
        if event["cat"] == "cpu_op" and parent is not None:
            parent.children.append(one)
        open_.append(one)
        found.append(one)
    for one in found:
        if [child.event["name"] for child in one.children] == [one.event["name"]]:
            one.children[0].merged = True
    return [one for one in found if not one.merged]


class _Enclosing:
    """Finds the ranges around a call; calls are to be asked for in order of time."""

    def __init__(self, ranges: Sequence[_Range]) -> None:
        self._by_thread: dict[Any, list[_Range]] = {}
        for one in ranges:
            self._by_thread.setdefault(one.event["tid"], []).append(one)
        self._next: dict[Any, int] = {}

    def of(self, call: Event) -> tuple[_Range, ...]:
        ranges = self._by_thread.get(call["tid"], [])
        place = self._next.get(call["tid"], 0)
        while place < len(ranges) and float(ranges[place].event["ts"]) <= float(call["ts"]):
            place += 1
        self._next[call["tid"]] = place
        if place == 0:
            return ()
        path = ranges[place - 1].path
        return tuple(one for one in path if _encloses(one.event, call))


def _encloses(outer: Event, inner: Event) -> bool:
    if outer["tid"] != inner["tid"]:
        return False
    return float(inner["ts"]) < float(outer["ts"]) + float(outer["dur"])


def _module(path: Sequence[_Range]) -> str:
    """The innermost module's."""
    names = (str(one.event["name"]) for one in reversed(path) if one.event["cat"] == "user_annotation")
    return next((name.removeprefix(MODULE) for name in names if name.startswith(MODULE)), "")


def _op(path: Sequence[_Range]) -> str:
    return " > ".join(str(one.event["name"]) for one in path if one.event["cat"] == "cpu_op")


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def _kernel(event: Event, api: str) -> Kernel:
    """Every argument is optional: builds of the profiler differ."""
    args = event.get("args", {})
    raw = args.get("est. achieved occupancy %")
    return Kernel(
        name=str(event["name"]),
        kind=_DEVICE[event["cat"]],
        grid=_three(args.get("grid")),
        block=_three(args.get("block")),
        registers=args.get("registers per thread"),
        shared_bytes=args.get("shared memory"),
        occupancy_raw=None if raw is None else float(raw) / 100,
        bytes=args.get("bytes"),
        api=api,
    )


def _three(value: Any) -> tuple[int, int, int] | None:
    return (int(value[0]), int(value[1]), int(value[2])) if value else None


def _limits(trace: Mapping[str, Any]) -> DeviceLimits | None:
    """Of the first device; None where a part is not in the trace."""
    for device in trace.get("deviceProperties", ()):
        try:
            return DeviceLimits(
                capability=(device["computeMajor"], device["computeMinor"]),
                sm_count=device["numSms"],
                threads_per_sm=device["maxThreadsPerMultiprocessor"],
                registers_per_sm=device["regsPerMultiprocessor"],
                shared_per_sm_bytes=device["sharedMemPerMultiprocessor"],
                shared_per_block_optin_bytes=device["sharedMemPerBlockOptin"],
            )
        except KeyError:
            continue
    return None

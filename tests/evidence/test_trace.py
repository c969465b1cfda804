"""Traces to profiles: attribution, and every way in which a trace proves nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from attnscale.evidence.trace import MODULE, STEP, TraceLost, profile_of

Trace = dict[str, Any]


class Writer:
    """A trace as Kineto writes it, one microsecond of CPU time a call."""

    def __init__(self) -> None:
        self.events: list[Trace] = []
        self._now = 0.0
        self._device = 100.0
        self._correlation = 0

    def range(self, name: str, *inside: Callable[[], None], cat: str = "user_annotation") -> None:
        began = self._now
        self._now += 1
        for each in inside:
            each()
        self._now += 1
        self._event(cat, name, began, self._now - began, tid=7)

    def op(self, name: str, *inside: Callable[[], None]) -> None:
        self.range(name, *inside, cat="cpu_op")

    def kernel(
        self,
        name: str,
        us: float = 10.0,
        *,
        cat: str = "kernel",
        api: str = "cuda_runtime",
        launched: bool = True,
        **args: Any,
    ) -> None:
        self._correlation += 1
        args |= {"correlation": self._correlation}
        if launched:
            self._event(api, f"{api}Launch", self._now, 0.5, tid=7, args=args)
        self._now += 1
        self._event(cat, name, self._device, us, tid=99, args=args)
        self._device += us + 1

    def _event(self, cat: str, name: str, ts: float, dur: float, **rest: Any) -> None:
        self.events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur} | rest)

    def trace(self) -> Trace:
        return {"traceEvents": [{"ph": "M", "name": "process_name"}, *reversed(self.events)]}


@pytest.fixture
def writer() -> Writer:
    return Writer()


def test_a_kernel_belongs_to_the_innermost_module_and_all_operators_around_its_launch(
    writer: Writer,
) -> None:
    def attention() -> None:
        writer.op("aten::linear", lambda: writer.op("aten::addmm", lambda: writer.kernel("gemm")))
        core = f"{MODULE}layers.0.attention.core"
        writer.range(core, lambda: writer.kernel("sdpa", api="cuda_driver"))
        writer.kernel("after")

    writer.range(
        STEP,
        lambda: writer.range(f"{MODULE}layers.0.attention", attention),
        lambda: writer.kernel("outside"),
    )
    profile = profile_of(writer.trace(), on_cpu=False)
    assert [
        (profile.kernels[one.kernel].name, profile.modules[one.module], profile.ops[one.op])
        for one in profile.launches
    ] == [
        ("gemm", "layers.0.attention", "aten::linear > aten::addmm"),
        ("sdpa", "layers.0.attention.core", ""),
        ("after", "layers.0.attention", ""),
        ("outside", "", ""),
    ]
    assert [kernel.api for kernel in profile.kernels][:2] == ["cuda_runtimeLaunch", "cuda_driverLaunch"]
    assert [one.at_us for one in profile.launches] == [0.0, 11.0, 22.0, 33.0]


def test_times_are_medians_over_the_steps(writer: Writer) -> None:
    for us in (10.0, 12.0, 50.0):
        writer.range(STEP, lambda us=us: writer.kernel("k", us))  # type: ignore[misc]
    profile = profile_of(writer.trace(), on_cpu=False)
    assert profile.steps == 3
    assert [one.us for one in profile.launches] == [12.0]


def test_what_a_kernel_is_comes_from_its_arguments(writer: Writer) -> None:
    full: dict[str, Any] = {
        "grid": [8, 2, 1],
        "block": [128, 1, 1],
        "registers per thread": 255,
        "shared memory": 49152,
        "est. achieved occupancy %": 13,
    }
    writer.range(
        STEP,
        lambda: writer.kernel("k", **full),
        lambda: writer.kernel("Memcpy DtoD", cat="gpu_memcpy", bytes=64),
        lambda: writer.kernel("bare"),
    )
    k, copy, bare = profile_of(writer.trace(), on_cpu=False).kernels
    assert (k.grid, k.block, k.registers, k.shared_bytes) == ((8, 2, 1), (128, 1, 1), 255, 49152)
    assert k.occupancy_raw == pytest.approx(0.13)
    assert (copy.kind, copy.bytes) == ("memcpy", 64)
    assert (bare.grid, bare.registers, bare.occupancy_raw) == (None, None, None)


def test_the_devices_own_annotations_are_not_used(writer: Writer) -> None:
    writer.range(STEP, lambda: writer.kernel("k"))
    annotation = {"cat": "gpu_user_annotation", "name": f"{MODULE}wrong", "ts": 0, "dur": 1e6, "tid": 7}
    writer.events.append({"ph": "X"} | annotation)
    profile = profile_of(writer.trace(), on_cpu=False)
    assert profile.modules == [""]
    assert len(profile.launches) == 1


def test_another_threads_ranges_are_not_around_it(writer: Writer) -> None:
    writer.range(STEP, lambda: writer.kernel("k"))
    other = {"cat": "user_annotation", "name": f"{MODULE}wrong", "ts": 0, "dur": 1e6, "tid": 8}
    writer.events.append({"ph": "X"} | other)
    assert profile_of(writer.trace(), on_cpu=False).modules == [""]


def test_what_was_queued_before_the_trace_is_no_part_of_it(writer: Writer) -> None:
    writer.kernel("of the warm-up", launched=False)
    writer.range(STEP, lambda: writer.kernel("k"))
    profile = profile_of(writer.trace(), on_cpu=False)
    assert [kernel.name for kernel in profile.kernels] == ["k"]


def _empty(writer: Writer) -> None:
    writer.range(STEP)


def _uneven(writer: Writer) -> None:
    writer.range(STEP, lambda: writer.kernel("k"))
    writer.range(STEP, lambda: writer.kernel("k"), lambda: writer.kernel("k"))


def _other(writer: Writer) -> None:
    writer.range(STEP, lambda: writer.kernel("k"))
    writer.range(STEP, lambda: writer.kernel("l"))


def _without_launch(writer: Writer) -> None:
    writer.range(STEP, lambda: writer.kernel("k"))
    writer.range(STEP, lambda: writer.kernel("k", launched=False))


def _elsewhere(writer: Writer) -> None:
    writer.range(STEP)
    writer.kernel("k")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda _: None, "holds no forward"),
        (_empty, "saw no kernel: CUPTI is taken"),
        (_elsewhere, "launched outside a profiled forward"),
        (_uneven, "did not run the same kernels: 1, 2 of them"),
        (_other, "did not run the same kernels: 1, 1 of them"),
        (_without_launch, "1 of 2 kernels have no launch"),
    ],
    ids=["no-step", "no-kernel", "elsewhere", "uneven", "other", "no-launch"],
)
def test_a_trace_that_proves_nothing_says_why(
    writer: Writer, write: Callable[[Writer], None], words: str
) -> None:
    write(writer)
    with pytest.raises(TraceLost, match=words):
        profile_of(writer.trace(), on_cpu=False)


def test_limits_come_from_the_trace(writer: Writer) -> None:
    writer.range(STEP, lambda: writer.kernel("k"))
    device = {
        "computeMajor": 9,
        "computeMinor": 0,
        "numSms": 132,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": 233472,
        "sharedMemPerBlockOptin": 232448,
    }
    whole = profile_of(writer.trace() | {"deviceProperties": [device]}, on_cpu=False)
    assert whole.limits is not None
    assert whole.limits.capability == (9, 0)
    del device["numSms"]
    assert profile_of(writer.trace() | {"deviceProperties": [device]}, on_cpu=False).limits is None


def test_a_cpus_operators_have_their_self_time(writer: Writer) -> None:
    writer.range(STEP, lambda: writer.op("aten::linear", lambda: writer.op("aten::addmm")))
    profile = profile_of(writer.trace(), on_cpu=True)
    assert [
        (profile.kernels[one.kernel].name, profile.ops[one.op], one.us) for one in profile.launches
    ] == [("aten::linear", "aten::linear", 2.0), ("aten::addmm", "aten::linear > aten::addmm", 2.0)]

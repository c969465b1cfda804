"""One case in, one outcome out: samples, nulls with reasons, faults that stay inside their case."""

import dataclasses
import functools
import gc
import statistics
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnscale.case import Case
from attnscale.measure import accuracy, attention, forward, memory, model, timing
from attnscale.measure.forward import measure
from attnscale.record import Kind, Status


def test_an_ok_case_has_every_number_or_its_reason(case: Case) -> None:
    outcome = measure(case)
    assert outcome.status is Status.OK
    metrics = outcome.metrics
    samples = outcome.latency_samples_ms
    assert len(samples) == case.timing.min_samples == 6
    assert metrics.latency_ms == pytest.approx(statistics.median(samples))
    assert metrics.latency_ci_low_ms == min(samples)
    assert metrics.latency_ci_high_ms == max(samples)
    assert metrics.latency_ms is not None
    assert metrics.tokens_per_s == pytest.approx(case.tokens / metrics.latency_ms * 1e3)
    assert metrics.first_call_ms is not None
    assert metrics.peak_allocated_bytes is None
    assert metrics.rel_error is not None
    assert 0 <= metrics.rel_error < 1e-5
    assert metrics.forward_rel_error is not None
    assert 0 <= metrics.forward_rel_error < 1e-4
    for name in ("peak_allocated_bytes", "device_ms", "host_ms", "sm_clock_mhz", "matmul_flops_per_s"):
        assert getattr(metrics, name) is None
        assert outcome.nulls[name].startswith("device is cpu")
    assert outcome.kind is Kind.CPU
    assert outcome.stopped_by == {"latency_ms": "max_seconds"}
    assert outcome.settling is not None
    assert "timing.settle_seconds=0" in str(outcome.settling.why)


def _patched(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], object], *, seq: int | None = None
) -> None:
    """Every backend's result is changed in place; with ``seq``, only where it is that long."""
    good = attention.build

    def build(case: Case) -> attention.Attention:
        built = good(case)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = built.attend(q, k, v)
            if seq in (None, q.shape[2]):
                change(out)
            return out

        return dataclasses.replace(built, attend=attend)

    monkeypatch.setattr(attention, "build", build)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_one_per_cent_off_in_the_last_rows_alone_is_wrong(
    make_case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    case = make_case(backend="flash", dtype=dtype, seq=512, head_dim=32)
    assert measure(case).status is Status.OK
    _patched(monkeypatch, lambda out: out[:, :, -16:].mul_(1.01), seq=512)
    outcome = measure(case)
    assert outcome.status is Status.WRONG
    assert "attention of flash is 1." in str(outcome.reason)
    assert "(late rows)" in str(outcome.reason)
    assert outcome.metrics.rel_error == pytest.approx(0.01, rel=0.2)
    assert outcome.metrics.latency_ms is None


def test_a_backend_that_gives_nan_is_wrong(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    _patched(monkeypatch, lambda out: out[0, 0, 3].fill_(float("nan")))
    outcome = measure(case)
    assert outcome.status is Status.WRONG
    assert outcome.reason == "attention of naive gave NaN or infinity in the result"
    assert outcome.metrics.rel_error is None
    assert outcome.nulls["rel_error"] == "NaN or infinity in the result"


def test_a_forward_that_is_wrong_is_wrong_although_its_attention_is_right(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    attends = model.SelfAttention.forward

    def off(self: Any, *args: Any) -> torch.Tensor:
        out: torch.Tensor = attends(self, *args)
        return out if self.attend.__class__ is functools.partial else out * 1.2

    accuracy.forward_error.cache_clear()
    monkeypatch.setattr(model.SelfAttention, "forward", off)
    outcome = measure(case)
    accuracy.forward_error.cache_clear()
    assert outcome.status is Status.WRONG
    assert "the forward, at a bounded size, of naive is" in str(outcome.reason)


def test_where_the_time_went_is_on_record(case: Case) -> None:
    outcome = measure(case)
    parts = {"peaks", "check", "build", "first_call", "memory"}
    parts |= {"capture", "settling", "device", "latency", "profile"}
    assert set(outcome.spent_s) == parts
    assert all(0 <= seconds < 5 for seconds in outcome.spent_s.values())


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_refused_backend_is_unsupported_and_never_falls_back(
    make_case: Callable[..., Case], backend: str
) -> None:
    outcome = measure(make_case(backend=backend))
    assert outcome.status is Status.UNSUPPORTED
    assert outcome.reason is not None
    assert "No viable backend" in outcome.reason
    assert outcome.metrics.latency_ms is None


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            Status.OOM,
            "CUDA out of memory",
        ),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            Status.OOM,
            "RuntimeError",
        ),
        (RuntimeError("CUDA error: out of memory\nmore"), Status.OOM, "CUDA error"),
        (MemoryError(), Status.OOM, "MemoryError"),
        (
            RuntimeError("device-side assert\nsecond line"),
            Status.FAILED,
            "RuntimeError: device-side assert",
        ),
        (ZeroDivisionError(), Status.FAILED, "ZeroDivisionError"),
    ],
    ids=["oom-cuda", "oom-cpu", "oom-driver", "oom-python", "failed", "failed-without-text"],
)
def test_a_fault_is_an_outcome_of_one_line(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: Exception, status: Status, reason: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(forward, "build_model", fail)
    outcome = measure(case)
    assert outcome.status is status
    assert outcome.reason is not None
    assert reason in outcome.reason
    assert "\n" not in outcome.reason
    assert (outcome.traceback is not None) is (status is Status.FAILED)


def test_a_failed_case_keeps_no_tensor_alive(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept exception keeps its frames, and they the model: the next case would start full."""
    alive: list[weakref.ref[torch.nn.Module]] = []
    original = model.build_model

    def build(*args: Any) -> torch.nn.Module:
        built = original(*args)
        alive.append(weakref.ref(built))
        return built

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("in the middle of a forward")

    monkeypatch.setattr(forward, "build_model", build)
    monkeypatch.setattr(timing, "latencies", fail)
    assert measure(case).status is Status.OOM
    gc.collect()
    assert [reference() for reference in alive] == [None]


def test_a_device_that_is_broken_afterwards_fails_its_case_and_is_no_exception(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sticky CUDA error surfaces at the next call, which may be the clean-up."""
    calls: list[str] = []

    def release(device: str) -> None:
        calls.append(device)
        if len(calls) > 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(memory, "release", release)
    outcomes = [measure(case), measure(case)]
    assert [outcome.status for outcome in outcomes] == [Status.FAILED, Status.FAILED]
    assert all("illegal memory access" in str(outcome.reason) for outcome in outcomes)


def test_the_next_case_is_measured_after_a_failed_one(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(attention, "build", lambda case: 1 / 0)
        assert measure(case).status is Status.FAILED
    assert measure(case).status is Status.OK


gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@gpu
@needs_cuda
def test_memory_is_that_of_the_case_and_given_back(make_case: Callable[..., Case]) -> None:
    case = make_case(device="cuda", dtype="bfloat16", backend="math", heads=8, head_dim=64, seq=512)
    first, second = measure(case), measure(case)
    for outcome in (first, second):
        assert outcome.status is Status.OK, outcome.reason
        assert outcome.metrics.baseline_allocated_bytes == 0
    assert first.metrics.peak_allocated_bytes == second.metrics.peak_allocated_bytes
    scores = case.batch * case.heads * case.seq**2 * 4
    assert first.metrics.peak_allocated_bytes is not None
    assert first.metrics.peak_reserved_bytes is not None
    assert scores < first.metrics.peak_allocated_bytes <= first.metrics.peak_reserved_bytes
    assert memory.usage("cuda") == memory.Usage(0, 0)


@gpu
@needs_cuda
def test_a_true_oom_between_two_good_cases(make_case: Callable[..., Case]) -> None:
    good = make_case(device="cuda", dtype="bfloat16")
    huge = make_case(device="cuda", dtype="bfloat16", backend="naive", seq=2**18, batch=64)
    before, oom, after = measure(good), measure(huge), measure(good)
    assert [before.status, oom.status, after.status] == [Status.OK, Status.OOM, Status.OK]
    assert after.metrics.baseline_allocated_bytes == before.metrics.baseline_allocated_bytes == 0
    assert after.metrics.peak_allocated_bytes == before.metrics.peak_allocated_bytes


@gpu
@needs_cuda
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"backend": "flash", "dtype": "float32"}, "dtype"),
        ({"backend": "cudnn", "dtype": "float32"}, "dtype"),
        ({"backend": "flash", "dtype": "bfloat16", "head_dim": 512}, "less than or equal to 256"),
        (
            {
                "backend": "flash",
                "dtype": "bfloat16",
                "batch": 70_000,
                "heads": 1,
                "seq": 16,
                "layers": 1,
            },
            "invalid",
        ),
    ],
    ids=["flash-fp32", "cudnn-fp32", "flash-head_dim", "flash-grid-limit"],
)
def test_refusals_carry_the_librarys_reasons(
    make_case: Callable[..., Case], values: dict[str, object], words: str
) -> None:
    outcome = measure(make_case(device="cuda", **values))
    assert outcome.status is Status.UNSUPPORTED, outcome.reason
    assert outcome.reason is not None
    assert words in outcome.reason.lower()


@gpu
@needs_cuda
def test_every_first_call_of_cudnn_builds_its_plans(make_case: Callable[..., Case]) -> None:
    """Plans are cached by thread; a second case of the shape must not find the first one's."""
    case = make_case(device="cuda", dtype="bfloat16", backend="cudnn", head_dim=64, seq=384)
    measure(make_case(device="cuda", dtype="bfloat16", backend="cudnn", head_dim=64, seq=320))
    first, second = measure(case).metrics, measure(case).metrics
    assert first.first_call_ms is not None
    assert second.first_call_ms is not None
    assert first.latency_ms is not None
    assert second.first_call_ms > 0.3 * first.first_call_ms > 2 * first.latency_ms

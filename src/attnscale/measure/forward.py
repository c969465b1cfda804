"""One case, measured: ``measure(case) -> Outcome``. Whether it is right comes before how fast it is.

A fault of the case is its outcome and never an exception: the sweep goes on, and all memory that
the case held is free again when this returns.
"""

import contextlib
import functools
import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from attnscale.case import Case
from attnscale.evidence import backend, categories
from attnscale.evidence.trace import TraceLost
from attnscale.measure import accuracy, attention, kernels, memory, timing
from attnscale.measure.clocks import Clocks
from attnscale.measure.cost import costs
from attnscale.measure.model import build_model, random_tokens
from attnscale.measure.peaks import Peaks, measured_peaks
from attnscale.measure.sampling import median_interval, settle
from attnscale.profile import Profile
from attnscale.record import Metrics, Outcome, Settling, Status

Result = TypeVar("Result")

_CPU = "device is cpu: torch counts no memory there"
_FEW = "fewer than 6 samples"


def measure(case: Case, keep_trace: Path | None = None) -> Outcome:
    """Run one case from building the model to the last sample, then once more for its kernels.

    Their trace is kept in the folder ``keep_trace``, if there is one.

    On a GPU every case has a thread of its own, because cuDNN caches its plans by thread: the first
    call builds them, whatever ran before it in this process.
    """
    outcome = _attempt(case, keep_trace)
    try:
        memory.release(case.device)  # the exception, and so the failed frames, are gone by now
    except RuntimeError as error:  # a fault of a kernel that surfaces here, or again: it is sticky
        return _outcome_of(error) if outcome.status is Status.OK else outcome
    return outcome


def _attempt(case: Case, keep_trace: Path | None) -> Outcome:
    try:
        memory.release(case.device)
        return _apart(functools.partial(_measure, keep_trace=keep_trace), case)
    except Exception as error:  # noqa: BLE001 - any fault of a case is its outcome
        return _outcome_of(error)


def _measure(case: Case, *, keep_trace: Path | None) -> Outcome:
    spent_s: dict[str, float] = {}
    with _clocked(spent_s, "peaks"):
        peaks = measured_peaks(case.device, case.dtype)
    with _clocked(spent_s, "check"):
        checked = _apart(_check, case)
    if checked.status is not None:
        return checked.ended(spent_s)
    guess_ms = _guess_ms(case, peaks, checked.chosen)
    memory.flush(case.device)
    before = memory.usage(case.device)
    with _clocked(spent_s, "build"):
        attend = attention.build(case)
        model, weights_allocated_bytes = memory.peak_of(lambda: build_model(case, attend), case.device)
    forward = functools.partial(model, random_tokens(case))
    clocks = Clocks(case.device)
    with torch.inference_mode(), attend.pinned():
        with _clocked(spent_s, "first_call"):
            first_ms = timing.first_call_ms(forward, case.device)
        with _clocked(spent_s, "memory"):
            _, activations_bytes = memory.peak_of(forward, case.device)
            peak = memory.peak(case.device)
        settling, device = _device_time(case, forward, clocks, spent_s)
        with _clocked(spent_s, "latency"):
            forward()  # the graph's memory went back to the driver: not the sampled forwards' business
            latency = timing.latencies(forward, case.timing, case.device)
        with _clocked(spent_s, "profile"):
            proof = _proof(case, model, forward, statistics.median(latency.waited), keep_trace)
    measured = Measured(
        case=case,
        checked=checked,
        peaks=peaks,
        guess_ms=guess_ms,
        clocks=clocks,
        first_ms=first_ms,
        device=device,
        latency=latency,
        before=before,
        peak=peak,
        weights_allocated_bytes=weights_allocated_bytes,
        activations_bytes=activations_bytes,
    )
    if proof.mismatch:
        return checked.ended(spent_s, proof)
    metrics, nulls = measured.metrics()
    stopped_by = {"device_ms": device.stopped_by, "latency_ms": latency.stopped_by}
    return Outcome(
        status=Status.OK,
        metrics=metrics,
        nulls=nulls | proof.nulls,
        latency_samples_ms=latency.waited,
        host_samples_ms=latency.host,
        device_windows=list(device.windows),
        settling=settling,
        device_timed_by=device.timed_by,
        capture_refused=device.capture_refused,
        stopped_by={name: why for name, why in stopped_by.items() if why is not None},
        spent_s=spent_s,
        backend_chosen=checked.chosen,
        backend_ran=proof.ran,
        profile=proof.profile,
        gqa=checked.gqa,
    )


def _guess_ms(case: Case, peaks: Peaks, chosen: str | None) -> float | None:
    """The roofline's guess of device_ms."""
    work = costs(case, ran=chosen)
    flops, moved = peaks.matmul_flops_per_s, peaks.copy_bytes_per_s
    if not flops or not moved or work.executed_flops is None:
        return None
    return max(work.executed_flops / flops, work.min_bytes / moved) * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a profiled pass says ran."""

    profile: Profile | None = None
    ran: str | None = None
    mismatch: str | None = None
    nulls: dict[str, str] = field(default_factory=dict)


def _proof(
    case: Case, model: nn.Module, forward: timing.Forward, forward_ms: float, keep: Path | None
) -> Proof:
    """A trace that is lost costs the proof, with a reason, and nothing that was timed."""
    try:
        profile = kernels.profiled(model, forward, case.device, forward_ms=forward_ms, keep=keep)
    except TraceLost as error:
        return Proof(nulls=dict.fromkeys(("profile", "backend_ran"), str(error)))
    rows = categories.rows(profile)
    ran = backend.ran(rows, causal=case.causal)
    return Proof(
        profile=profile,
        ran=ran,
        mismatch=backend.why_mismatch(case.backend, ran, rows, causal=case.causal),
        nulls={} if ran else {"backend_ran": "no backend's fingerprint fits these kernels"},
    )


def _device_time(
    case: Case, forward: timing.Forward, clocks: Clocks, spent_s: dict[str, float]
) -> tuple[Settling, timing.DeviceTime]:
    with _clocked(spent_s, "capture"):
        windows = timing.windows_of(forward, case.timing, case.device)
    with _clocked(spent_s, "settling"):
        settling = settle(windows.warm, clocks.read, case.timing)
    with _clocked(spent_s, "device"):
        return settling, timing.device_time(windows, case.timing, clocks.read)


def _check(case: Case) -> "Checked":
    """Whether the backend takes this shape and computes it right, and what PyTorch would pick.

    Apart from the thread that measures, or its first call would find the plans built here.
    """
    attend = attention.build(case)
    with torch.inference_mode():
        refusal = attention.why_refused(case, attend)
        if refusal is not None:
            return Checked(status=Status.UNSUPPORTED, reason=refusal, gqa=attend.gqa)
        chosen = attention.chosen(case, attend)
        error, attention_bytes = _check_attention(case, attend)
    forward_error = accuracy.forward_error(accuracy.bounded(case))
    wrong = accuracy.too_far(case, error, forward_error)
    return Checked(
        status=Status.WRONG if wrong else None,
        reason=wrong,
        gqa=attend.gqa,
        chosen=chosen,
        error=error,
        forward_error=forward_error,
        attention_bytes=attention_bytes,
    )


def _check_attention(case: Case, attend: attention.Attention) -> tuple[accuracy.Error, int | None]:
    """Its error, and the most bytes that it held beyond its inputs."""
    q, k, v = attention.inputs(case)
    with attend.pinned():
        out, most_bytes = memory.peak_of(functools.partial(attend.attend, q, k, v), case.device)
    return accuracy.attention_error(out, q, k, v, causal=case.causal), most_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is known of a case before it is timed."""

    status: Status | None
    """Unsupported or wrong, which end it; None when it may be timed."""
    reason: str | None
    gqa: str
    chosen: str | None = None
    error: accuracy.Error | None = None
    forward_error: accuracy.Error | str = ""
    attention_bytes: int | None = None

    def ended(self, spent_s: dict[str, float], proof: "Proof | None" = None) -> Outcome:
        """Of a case that has no times: not timed, or by ``proof`` those of something else."""
        status = Status.MISMATCH if proof else self.status
        assert status is not None
        metrics, nulls = self.errors()
        return Outcome(
            status=status,
            reason=proof.mismatch if proof else self.reason,
            backend_ran=proof.ran if proof else None,
            profile=proof.profile if proof else None,
            metrics=Metrics.model_validate(metrics),
            nulls=nulls,
            spent_s=spent_s,
            backend_chosen=self.chosen,
            gqa=self.gqa,
        )

    def errors(self) -> tuple[dict[str, float], dict[str, str]]:
        """rel_error and forward_rel_error, and why one is null."""
        found, nulls = {}, {}
        for name, error in (("rel_error", self.error), ("forward_rel_error", self.forward_error)):
            if isinstance(error, accuracy.Error) and math.isfinite(error.value):
                found[name] = error.value
            elif error:
                nulls[name] = error if isinstance(error, str) else error.where
        return found, nulls


def _apart(function: Callable[[Case], Result], case: Case) -> Result:
    """In a new thread on a GPU. Not on a CPU, where a second thread brings a second OpenMP team,
    whose spinning made a forward of 0.3 ms take 32.
    """
    if case.device == "cpu":
        return function(case)
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(function, case).result()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that one case gave, before it becomes numbers and reasons."""

    case: Case
    checked: Checked
    peaks: Peaks
    guess_ms: float | None
    clocks: Clocks
    first_ms: float
    device: timing.DeviceTime
    latency: timing.Latency
    before: memory.Usage | None
    peak: memory.Usage | None
    weights_allocated_bytes: int | None
    activations_bytes: int | None

    def metrics(self) -> tuple[Metrics, dict[str, str]]:
        """Every metric, or the reason why it is null."""
        values: dict[str, float | None] = {}
        nulls: dict[str, str] = {}
        for part, why in (self._times(), self.checked.errors(), self._card(), self._memory()):
            values |= part
            nulls |= why
        return Metrics.model_validate(values), nulls

    def _times(self) -> tuple[dict[str, float | None], dict[str, str]]:
        windows = [window.ms for window in self.device.windows]
        values: dict[str, float | None] = {"first_call_ms": self.first_ms}
        nulls: dict[str, str] = {}
        for name, samples, absent in [
            ("latency", self.latency.waited, ""),
            ("device", windows, self.device.null),
            ("host", self.latency.host, timing.NO_GPU),
        ]:
            names = (f"{name}_ms", f"{name}_ci_low_ms", f"{name}_ci_high_ms")
            found = median_interval(samples) if samples else (None, None, None)
            values |= zip(names, found, strict=True)
            nulls |= {key: absent or "" for key in names if not samples}
            nulls |= {key: _FEW for key in names[1:] if samples and values[key] is None}
        median = values["latency_ms"]
        assert median is not None
        values["tokens_per_s"] = self.case.tokens / median * 1e3
        return values, nulls

    def _card(self) -> tuple[dict[str, float | None], dict[str, str]]:
        values: dict[str, float | None] = {
            "guess_device_ms": self.guess_ms,
            "matmul_flops_per_s": self.peaks.matmul_flops_per_s,
            "copy_bytes_per_s": self.peaks.copy_bytes_per_s,
        }
        nulls = dict(self.peaks.nulls)
        if self.guess_ms is None:
            nulls["guess_device_ms"] = "the card's peaks are unknown: " + "; ".join(set(nulls.values()))
        for name in ("sm_clock_mhz", "power_w", "temperature_c"):
            read = [v for one in self.device.windows if (v := getattr(one, name)) is not None]
            values[name] = statistics.median(read) if read else None
            if not read:
                nulls[name] = self.clocks.nulls.get(name) or self.device.null or "not read"
        return values, nulls

    def _memory(self) -> tuple[dict[str, float | None], dict[str, str]]:
        before, peak = self.before, self.peak
        values = {
            "weights_allocated_bytes": self.weights_allocated_bytes,
            "activations_peak_bytes": self.activations_bytes,
            "attention_peak_bytes": self.checked.attention_bytes,
            "peak_allocated_bytes": peak.allocated - before.allocated if before and peak else None,
            "peak_reserved_bytes": peak.reserved - before.reserved if before and peak else None,
            "baseline_allocated_bytes": before.allocated if before else None,
        }
        return dict(values), {name: _CPU for name, value in values.items() if value is None}


@contextlib.contextmanager
def _clocked(spent_s: dict[str, float], part: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    spent_s[part] = time.perf_counter() - began


def _outcome_of(error: Exception) -> Outcome:
    first_line = next(iter(str(error).strip().splitlines()), "")
    reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    if _is_out_of_memory(error):
        advice = " If reserved but unallocated memory"  # torch's, on its allocator's settings
        return Outcome(status=Status.OOM, reason=reason.partition(advice)[0])
    return Outcome(
        status=Status.FAILED, reason=reason, traceback="".join(traceback.format_exception(error))
    )


def _is_out_of_memory(error: Exception) -> bool:
    """torch's own kind, or a plain RuntimeError of the CPU's allocator or of the driver."""
    plain = ("DefaultCPUAllocator", "CUDA error: out of memory")
    known = isinstance(error, RuntimeError) and any(words in str(error) for words in plain)
    return known or isinstance(error, torch.OutOfMemoryError | MemoryError)

"""One case, measured: ``measure(case) -> Outcome``. The seam behind which isolation will live.

A fault of the case is its outcome and never an exception: the sweep goes on, and all memory that
the case held is free again when this returns.
"""

import functools
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from attnscale.case import Case
from attnscale.measure import attention, memory, timing
from attnscale.measure.model import build_model, random_tokens
from attnscale.record import Metrics, Outcome, Status

Result = TypeVar("Result")

_CPU = "device is cpu: torch counts no memory there"
_FEW = "fewer than 6 samples"


def measure(case: Case) -> Outcome:
    """Run one case from building the model to the last sample.

    On a GPU every case has a thread of its own, because cuDNN caches its plans by thread: the first
    call builds them, whatever ran before it in this process.
    """
    outcome = _attempt(case)
    try:
        memory.release(case.device)  # the exception, and so the failed frames, are gone by now
    except RuntimeError as error:  # a fault of a kernel that surfaces here, or again: it is sticky
        return _outcome_of(error) if outcome.status is Status.OK else outcome
    return outcome


def _attempt(case: Case) -> Outcome:
    try:
        memory.release(case.device)
        return _apart(_measure, case)
    except Exception as error:  # noqa: BLE001 - any fault of a case is its outcome
        return _outcome_of(error)


def _measure(case: Case) -> Outcome:
    refusal, chosen, gqa = _apart(_ask_dispatcher, case)
    if refusal is not None:
        return Outcome(status=Status.UNSUPPORTED, reason=refusal, gqa=gqa)
    memory.flush(case.device)
    before = memory.usage(case.device)
    attend = attention.build(case)
    model = build_model(case, attend)
    forward = functools.partial(model, random_tokens(case))
    with torch.inference_mode(), attend.pinned():
        first_ms = timing.first_call_ms(forward, case.device)
        memory.reset_peak(case.device)
        for _ in range(case.timing.warmup):
            forward()
        peak = memory.peak(case.device)
        samples = timing.latency_samples_ms(forward, case.timing, case.device)
    metrics, nulls = _metrics(case, first_ms, samples, before, peak)
    return Outcome(
        status=Status.OK,
        metrics=metrics,
        nulls=nulls,
        samples_ms=samples,
        backend_chosen=chosen,
        gqa=gqa,
    )


def _ask_dispatcher(case: Case) -> tuple[str | None, str | None, str]:
    """Why the backend refuses this shape or None, what PyTorch picks, and how GQA is done.

    Apart from the thread that measures, or its first call would find the plans built here.
    """
    attend = attention.build(case)
    with torch.inference_mode():
        refusal = attention.why_refused(case, attend)
        return refusal, None if refusal else attention.chosen(case, attend), attend.gqa


def _apart(function: Callable[[Case], Result], case: Case) -> Result:
    """In a new thread on a GPU. Not on a CPU, where a second thread brings a second OpenMP team,
    whose spinning made a forward of 0.3 ms take 32.
    """
    if case.device == "cpu":
        return function(case)
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(function, case).result()


def _metrics(
    case: Case,
    first_ms: float,
    samples: list[float],
    before: memory.Usage | None,
    peak: memory.Usage | None,
) -> tuple[Metrics, dict[str, str]]:
    median, low, high = timing.median_interval(samples)
    nulls: dict[str, str] = {}
    if low is None:
        nulls |= dict.fromkeys(("latency_ci_low_ms", "latency_ci_high_ms"), _FEW)
    if before is None or peak is None:
        memory_keys = ("peak_allocated_bytes", "peak_reserved_bytes", "baseline_allocated_bytes")
        nulls |= dict.fromkeys(memory_keys, _CPU)
    metrics = Metrics(
        latency_ms=median,
        latency_ci_low_ms=low,
        latency_ci_high_ms=high,
        first_call_ms=first_ms,
        tokens_per_s=case.tokens / median * 1e3,
        peak_allocated_bytes=peak.allocated - before.allocated if before and peak else None,
        peak_reserved_bytes=peak.reserved - before.reserved if before and peak else None,
        baseline_allocated_bytes=before.allocated if before else None,
    )
    return metrics, nulls


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

"""What every test may ask for: small cases and whole records that no measurement made."""

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from attnscale.case import Case, Timing
from attnscale.record import Costs, Environment, Metrics, Outcome, Record, Settling, Status, Window

TIMING = Timing(settle_seconds=0.0, precision=0.0, min_samples=6, max_seconds=1e-6, flush_l2=False)


def timing_of(**changes: Any) -> Timing:
    """TIMING, sampled otherwise."""
    return dataclasses.replace(TIMING, **changes)


def make_case(**overrides: Any) -> Case:
    """A tiny CPU case; kv_heads follows heads and ffn_dim is four times d_model unless given."""
    values: dict[str, Any] = {
        "model": "gpt",
        "arch": "gpt",
        "backend": "naive",
        "seq": 16,
        "batch": 2,
        "heads": 4,
        "head_dim": 8,
        "layers": 2,
        "vocab": 97,
        "dtype": "float32",
        "causal": True,
        "device": "cpu",
        "seed": 0,
        "timing": TIMING,
    } | overrides
    values.setdefault("kv_heads", values["heads"])
    values.setdefault("ffn_dim", 4 * values["heads"] * values["head_dim"])
    return Case(**values)


ENVIRONMENT = Environment(
    device_name="Test CPU",
    gpu_uuid=None,
    gpu_memory_bytes=None,
    driver=None,
    cuda=None,
    cudnn=None,
    torch="2.13.0+cpu",
    python="3.11.7",
    packages={"attnscale": "0.1.0"},
    threads=2,
    sdpa_switches={"flash": True, "math": True},
    fp16_bf16_reduction_math=False,
    matmul_precision="highest",
    flash_implementation=None,
    git_commit=None,
    command="run.py backend=naive",
    nulls={
        "gpu_uuid": "device is cpu",
        "gpu_memory_bytes": "device is cpu",
        "driver": "device is cpu",
        "cuda": "device is cpu",
        "cudnn": "device is cpu",
        "git_commit": "not a git checkout",
    },
)


def make_record(
    case: Case | None = None,
    *,
    status: Status = Status.OK,
    latency_ms: float = 2.0,
    device_ms: float | None = None,
    host_ms: float | None = None,
    reason: str | None = None,
    peak_allocated_bytes: int | None = None,
    traceback: str | None = None,
    sweep_id: str = "test-sweep",
    started_at: str = "2026-12-01T00:00:00+00:00",
    environment: Environment = ENVIRONMENT,
) -> Record:
    """A whole record of ``case``, with invented numbers around ``latency_ms``.

    Without ``device_ms`` and ``host_ms`` it has what a CPU has.
    """
    case = case or make_case()
    if status is Status.OK:
        metrics = Metrics(
            latency_ms=latency_ms,
            latency_ci_low_ms=latency_ms * 0.98,
            latency_ci_high_ms=latency_ms * 1.02,
            device_ms=device_ms,
            device_ci_low_ms=device_ms and device_ms * 0.99,
            device_ci_high_ms=device_ms and device_ms * 1.01,
            host_ms=host_ms,
            host_ci_low_ms=host_ms and host_ms * 0.95,
            host_ci_high_ms=host_ms and host_ms * 1.05,
            first_call_ms=latency_ms * 10,
            tokens_per_s=case.tokens / latency_ms * 1e3,
            rel_error=0.002,
            forward_rel_error=0.004,
            peak_allocated_bytes=peak_allocated_bytes,
            peak_reserved_bytes=peak_allocated_bytes,
            baseline_allocated_bytes=None if peak_allocated_bytes is None else 0,
        )
        unknown = [name for name, value in metrics.model_dump().items() if value is None]
        samples = [latency_ms * factor for factor in (0.97, 0.98, 1.0, 1.0, 1.02, 1.1)]
        outcome = Outcome(
            status=status,
            metrics=metrics,
            nulls=dict.fromkeys(unknown, "device is cpu")
            | dict.fromkeys(("profile", "backend_ran"), "not profiled"),
            latency_samples_ms=samples,
            host_samples_ms=samples if host_ms else [],
            device_windows=[Window(ms=device_ms)] * 6 if device_ms else [],
            device_timed_by="graph" if device_ms else None,
            settling=Settling(settled=True, why=None, seconds=0.5, windows=[]),
            stopped_by={"latency_ms": "precision"},
            backend_chosen=case.backend if case.backend != "auto" else "flash",
            gqa="none",
        )
    else:
        outcome = Outcome(
            status=status, reason=reason or f"a {status} of the tests", traceback=traceback
        )
    costs = Costs(
        params=1000, weight_bytes=4000, useful_flops=10**6, executed_flops=10**6, min_bytes=5000
    )
    return Record(
        sweep_id=sweep_id,
        key=case.key,
        slug=case.slug,
        case=case,
        outcome=outcome,
        costs=costs,
        environment=environment,
        started_at=started_at,
        ended_at=started_at,
    )


def as_schema_2(raw: dict[str, Any]) -> dict[str, Any]:
    """A record or a planned case as the releases before schema 3 wrote it."""
    raw = copy.deepcopy(raw)
    timing = raw["case"]["timing"]
    then = {"warmup": 1, "samples": timing["min_samples"], "max_seconds": timing["max_seconds"]}
    raw["case"]["timing"] = then
    fields = {name: value for name, value in raw["case"].items() if name != "model"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    raw["key"] = hashlib.sha256(canonical.encode()).hexdigest()[:12]
    if "outcome" in raw:
        raw["schema_version"] = 2
        outcome = raw["outcome"]
        outcome["samples_ms"] = outcome.pop("latency_samples_ms")
        for name in ("metrics", "nulls"):
            outcome[name] = {key: outcome[name][key] for key in _METRICS_THEN if key in outcome[name]}
        for name in ("host_samples_ms", "device_windows", "settling", "device_timed_by"):
            del outcome[name]
        for name in ("capture_refused", "stopped_by", "spent_s", "backend_ran", "profile"):
            del outcome[name]
    return raw


_METRICS_THEN = (
    "latency_ms",
    "latency_ci_low_ms",
    "latency_ci_high_ms",
    "first_call_ms",
    "tokens_per_s",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "baseline_allocated_bytes",
)


@pytest.fixture(name="make_case")
def _make_case() -> Callable[..., Case]:
    return make_case


@pytest.fixture(name="make_record")
def _make_record() -> Callable[..., Record]:
    return make_record


@pytest.fixture
def case() -> Case:
    return make_case()

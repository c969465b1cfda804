"""What every test may ask for: small cases and whole records that no measurement made."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from attnscale.case import Case, Timing
from attnscale.record import Costs, Environment, Metrics, Outcome, Record, Status

TIMING = Timing(warmup=1, samples=6, max_seconds=5.0)


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
    reason: str | None = None,
    peak_allocated_bytes: int | None = None,
    traceback: str | None = None,
    sweep_id: str = "test-sweep",
    started_at: str = "2026-12-01T00:00:00+00:00",
    environment: Environment = ENVIRONMENT,
) -> Record:
    """A whole record of ``case``, with invented numbers around ``latency_ms``."""
    case = case or make_case()
    if status is Status.OK:
        cpu = "device is cpu"
        outcome = Outcome(
            status=status,
            metrics=Metrics(
                latency_ms=latency_ms,
                latency_ci_low_ms=latency_ms * 0.98,
                latency_ci_high_ms=latency_ms * 1.02,
                first_call_ms=latency_ms * 10,
                tokens_per_s=case.tokens / latency_ms * 1e3,
                peak_allocated_bytes=peak_allocated_bytes,
                peak_reserved_bytes=peak_allocated_bytes,
                baseline_allocated_bytes=None if peak_allocated_bytes is None else 0,
            ),
            nulls={}
            if peak_allocated_bytes is not None
            else {
                "peak_allocated_bytes": cpu,
                "peak_reserved_bytes": cpu,
                "baseline_allocated_bytes": cpu,
            },
            samples_ms=[latency_ms * factor for factor in (0.97, 0.98, 1.0, 1.0, 1.02, 1.1)],
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


@pytest.fixture(name="make_case")
def _make_case() -> Callable[..., Case]:
    return make_case


@pytest.fixture(name="make_record")
def _make_record() -> Callable[..., Record]:
    return make_record


@pytest.fixture
def case() -> Case:
    return make_case()


def with_timing(case: Case, **changes: Any) -> Case:
    """The same case, sampled otherwise."""
    return dataclasses.replace(case, timing=dataclasses.replace(case.timing, **changes))

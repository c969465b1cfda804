"""The check against fp32: right results pass at any shape, small and local faults do not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnscale.case import BACKENDS, Case
from attnscale.measure import accuracy, attention
from tests.contract.test_backends import CUDA, MAY_REFUSE, inputs, reference

SHAPES: dict[str, dict[str, Any]] = {
    "one-token": {"seq": 1, "batch": 1},
    "odd": {"seq": 95, "batch": 1},
    "gqa": {"seq": 130, "batch": 3, "arch": "llama", "heads": 8, "kv_heads": 2},
    "not-causal": {"seq": 200, "batch": 2, "causal": False},
    "many-sequences": {"seq": 8, "batch": 40},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_attention(make_case: Callable[..., Case], shape: str) -> None:
    case = make_case(**SHAPES[shape])
    q, k, v = inputs(case)
    rows = torch.arange(case.seq)
    ours = accuracy.reference_attention(q, k, v, rows, causal=case.causal)
    expected = reference(q, k, v, causal=case.causal)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_change_nothing(
    make_case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    case = make_case(**SHAPES[shape])
    q, k, v = inputs(case)
    out = reference(q, k, v, causal=case.causal).float() * 1.01
    whole = accuracy.attention_error(out, q, k, v, causal=case.causal)
    monkeypatch.setattr(accuracy, "_CHUNK_BYTES", 1)
    by_head = accuracy.attention_error(out, q, k, v, causal=case.causal)
    assert by_head.value == pytest.approx(whole.value, rel=1e-4)
    assert whole.value == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("seq", [1, 2, 31, 32, 33, 95, 96, 97, 5000])
def test_zones_are_rows_of_the_sequence_with_both_ends(seq: int) -> None:
    zones = accuracy.zones(seq)
    assert zones["early"][0] == 0
    assert zones["late"][-1] == seq - 1
    for rows in zones.values():
        assert 1 <= len(rows) <= 32
        assert rows.min() >= 0
        assert rows.max() < seq


@pytest.mark.parametrize(
    ("part", "zone"),
    [
        ((slice(None), slice(None), slice(0, 4)), "early"),
        ((slice(None), slice(None), slice(250, 260)), "middle"),
        ((slice(None), slice(None), slice(511, 512)), "late"),
        ((slice(None), 2), ""),
    ],
    ids=["first-rows", "middle-rows", "last-row", "one-head"],
)
def test_one_per_cent_off_somewhere_is_seen_as_such(
    make_case: Callable[..., Case], part: tuple[Any, ...], zone: str
) -> None:
    case = make_case(seq=512)
    q, k, v = inputs(case)
    out = reference(q, k, v, causal=True).float()
    out[part] *= 1.01
    error = accuracy.attention_error(out, q, k, v, causal=True)
    assert error.value == pytest.approx(0.01, rel=0.01)
    assert error.where.startswith(zone)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_seen_outside_the_compared_rows_too(
    make_case: Callable[..., Case], value: float
) -> None:
    case = make_case(seq=512)
    q, k, v = inputs(case)
    out = reference(q, k, v, causal=True).float()
    out[0, 0, 100, 0] = value
    assert math.isinf(accuracy.attention_error(out, q, k, v, causal=True).value)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("dtype", sorted(accuracy.ATTENTION_TOLERANCE))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("arch", ["gpt", "llama"])
def test_every_backend_is_within_its_tolerance_by_half(
    make_case: Callable[..., Case], backend: str, dtype: str, device: str, arch: str
) -> None:
    """And the least fault that is looked for, 1%, is beyond that of every fused kernel."""
    if (backend, dtype) in MAY_REFUSE[device]:
        pytest.skip(f"{backend} takes no {dtype} on {device}")
    grouped = {"heads": 8, "kv_heads": 2} if arch == "llama" else {"heads": 4}
    long = 4096 if device == "cuda" else 512
    case = make_case(
        arch=arch, backend=backend, dtype=dtype, device=device, seq=long, head_dim=64, **grouped
    )
    built = attention.build(case)
    q, k, v = attention.inputs(case)
    with torch.inference_mode(), built.pinned():
        out = built.attend(q, k, v)
    error = accuracy.attention_error(out, q, k, v, causal=case.causal)
    assert 0 <= error.value < 0.6 * accuracy.attention_tolerance(case)
    forward = accuracy.forward_error(accuracy.bounded(case))
    assert isinstance(forward, accuracy.Error)
    assert forward.value < 0.6 * accuracy.FORWARD_TOLERANCE[dtype]
    if not backend.startswith("naive"):
        assert accuracy.attention_tolerance(case) < 0.01


def test_a_bounded_case_is_small_and_of_the_same_kind(make_case: Callable[..., Case]) -> None:
    large = make_case(
        arch="llama",
        heads=64,
        kv_heads=8,
        head_dim=128,
        seq=131_072,
        layers=80,
        vocab=128_256,
    )
    small = accuracy.bounded(large)
    assert (small.seq, small.heads, small.kv_heads, small.layers) == (256, 8, 1, 2)
    assert (small.arch, small.backend, small.dtype, small.head_dim) == ("llama", "naive", "float32", 128)


def test_cases_that_differ_in_depth_or_samples_share_their_bounded_one(
    make_case: Callable[..., Case],
) -> None:
    deep, deeper = make_case(layers=8, seq=1024), make_case(layers=80, seq=8192)
    assert accuracy.bounded(deep) == accuracy.bounded(deeper)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_memory_is_bounded_at_a_long_sequence(make_case: Callable[..., Case]) -> None:
    case = make_case(
        device="cuda", dtype="bfloat16", backend="flash", heads=16, head_dim=128, seq=131_072, batch=1
    )
    q, k, v = attention.inputs(case)
    built = attention.build(case)
    with torch.inference_mode(), built.pinned():
        out = built.attend(q, k, v)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    error = accuracy.attention_error(out, q, k, v, causal=True)
    assert error.value < accuracy.ATTENTION_TOLERANCE["bfloat16"]
    assert torch.cuda.max_memory_allocated() - before < 2**30

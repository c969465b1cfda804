"""The contract of every backend: the result of an eager reference in higher precision, or a refusal.

The reference is written here, from the definition of attention, and shares no code with the project.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscale.case import BACKENDS, Case
from attnscale.measure import attention

# Largest error, as a share of the reference's largest value. Half precision rounds the inputs'
# products once or twice: 8 bits of mantissa for bfloat16, 11 for float16.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}

SHAPES: dict[str, dict[str, Any]] = {
    "one-token": {"seq": 1, "batch": 1},
    "odd-length": {"seq": 37, "batch": 1},
    "batch-3": {"seq": 16, "batch": 3},
    "gqa": {"seq": 33, "batch": 2, "arch": "llama", "heads": 8, "kv_heads": 2},
    "mqa": {"seq": 8, "batch": 1, "arch": "llama", "heads": 4, "kv_heads": 1},
    "not-causal": {"seq": 19, "batch": 2, "causal": False},
    "long": {"seq": 300, "batch": 1},
}
CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
)
# What may be refused, and by whom; anything else must run. On CUDA cuDNN may also refuse one token.
MAY_REFUSE = {
    "cpu": {(name, dtype) for name in ("efficient", "cudnn") for dtype in TOLERANCE},
    "cuda": {("flash", "float32"), ("cudnn", "float32")},
}


def reference(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v in float64, query head h reading kv head h // group."""
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q, dtype=torch.float64)
    for head in range(q.shape[1]):
        keys, values = k[:, head // group].double(), v[:, head // group].double()
        scores = q[:, head].double() @ keys.mT / math.sqrt(q.shape[-1])
        if causal:
            later = torch.arange(k.shape[2], device=q.device) > torch.arange(
                q.shape[2], device=q.device
            ).unsqueeze(1)
            scores = scores.where(~later, -math.inf)
        out[:, head] = scores.softmax(-1) @ values
    return out


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("backend", BACKENDS)
def test_backend_agrees_with_the_reference_or_says_why_not(
    make_case: Callable[..., Case], backend: str, shape: str, dtype: str, device: str
) -> None:
    case = make_case(backend=backend, dtype=dtype, device=device, head_dim=32, **SHAPES[shape])
    built = attention.build(case)
    refusal = attention.why_refused(case, built)
    if refusal is not None:
        one_token = (backend, device, case.seq) == ("cudnn", "cuda", 1)
        assert one_token or (backend, dtype) in MAY_REFUSE[device], refusal
        assert refusal.startswith(f"{backend} on {device}: ")
        assert "\n" not in refusal
        return
    assert device == "cuda" or (backend, dtype) not in MAY_REFUSE["cpu"]
    q, k, v = inputs(case)
    originals = [tensor.clone() for tensor in (q, k, v)]
    with torch.inference_mode(), built.pinned():
        out = built.attend(q, k, v)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    expected = reference(q, k, v, causal=case.causal)
    error = (out.double() - expected).abs().max() / expected.abs().max()
    assert error.item() < TOLERANCE[dtype]
    for tensor, original in zip((q, k, v), originals, strict=True):
        assert torch.equal(tensor, original), "a backend changed its inputs"


def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Strided as in the model: [batch, seq, heads, head_dim] transposed."""
    generator = torch.Generator(device=case.device).manual_seed(7)

    def draw(heads: int) -> Tensor:
        size = (case.batch, case.seq, heads, case.head_dim)
        dtype = getattr(torch, case.dtype)
        made = torch.randn(size, generator=generator, device=case.device, dtype=dtype)
        return made.transpose(1, 2)

    return draw(case.heads), draw(case.kv_heads), draw(case.kv_heads)


@pytest.mark.parametrize(
    ("backend", "gqa"),
    [
        ("naive", "materialised"),
        ("naive_inplace", "materialised"),
        ("efficient", "materialised"),
        ("math", "native"),
        ("flash", "native"),
        ("cudnn", "native"),
        ("auto", "native"),
    ],
)
def test_how_grouped_heads_are_done_is_on_record(
    make_case: Callable[..., Case], backend: str, gqa: str
) -> None:
    grouped = make_case(arch="llama", backend=backend, heads=8, kv_heads=2)
    assert attention.build(grouped).gqa == gqa
    assert attention.build(make_case(backend=backend)).gqa == "none"

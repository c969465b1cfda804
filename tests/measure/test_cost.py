"""Closed forms against torch's own counter over the real forward, and against published sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnscale.case import Case
from attnscale.measure import attention
from attnscale.measure.cost import attention_flops, costs, min_bytes, params
from attnscale.measure.model import build_model, random_tokens

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": ({"layers": 12, "heads": 12, "head_dim": 64, "vocab": 50257, "seq": 1024}, 124_439_808),
    "gpt2_xl": ({"layers": 48, "heads": 25, "head_dim": 64, "vocab": 50257, "seq": 1024}, 1_557_611_200),
    "llama3_8b": (
        {
            "arch": "llama",
            "layers": 32,
            "heads": 32,
            "kv_heads": 8,
            "head_dim": 128,
            "ffn_dim": 14336,
            "vocab": 128256,
        },
        8_030_261_248,
    ),
    "llama3_70b": (
        {
            "arch": "llama",
            "layers": 80,
            "heads": 64,
            "kv_heads": 8,
            "head_dim": 128,
            "ffn_dim": 28672,
            "vocab": 128256,
        },
        70_553_706_496,
    ),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_parameter_counts(make_case: Callable[..., Case], name: str) -> None:
    shape, expected = PUBLISHED[name]
    assert params(make_case(**shape)) == expected


@pytest.mark.parametrize("backend", ["naive", "flash", "math"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(
    "shape",
    [{}, {"seq": 33, "batch": 3}, {"arch": "llama", "heads": 8, "kv_heads": 2, "ffn_dim": 80}],
    ids=["gpt", "odd", "llama-gqa"],
)
def test_flops_are_those_of_torchs_counter(
    make_case: Callable[..., Case], shape: dict[str, object], causal: bool, backend: str
) -> None:
    """torch counts the whole square of attention, also where a causal kernel skips half of it.

    Its counter has no formula for the CPU's flash kernel, which it leaves out: the square is added.
    """
    case = make_case(backend=backend, causal=causal, **shape)
    attend = attention.build(case)
    model = build_model(case, attend)
    with torch.inference_mode(), attend.pinned(), FlopCounterMode(display=False) as counter:
        model(random_tokens(case))
    found = costs(case, ran=backend)
    square = case.layers * attention_flops(case, full_square=True)
    half = case.layers * attention_flops(case, full_square=False)
    counted = counter.get_total_flops() + (square if backend == "flash" else 0)
    assert found.useful_flops == counted - square + half
    assert found.executed_flops == (counted - square + half if backend == "flash" else counted)


def test_the_causal_half_is_exact(make_case: Callable[..., Case]) -> None:
    case = make_case(seq=5, batch=1, heads=1, head_dim=2)
    pairs = sum(1 for query in range(5) for key in range(5) if key <= query)
    assert attention_flops(case, full_square=False) == 2 * 2 * 2 * pairs


@pytest.mark.parametrize(
    ("ran", "full"),
    [("naive", True), ("math", True), ("flash", False), ("cudnn", False), ("efficient", False)],
)
def test_auto_executes_what_it_chose(make_case: Callable[..., Case], ran: str, full: bool) -> None:
    found = costs(make_case(backend="auto"), ran=ran)
    assert found.executed_flops is not None
    assert (found.executed_flops > found.useful_flops) is full


def test_auto_that_never_chose_has_no_executed_flops(make_case: Callable[..., Case]) -> None:
    assert costs(make_case(backend="auto"), ran=None).executed_flops is None


@pytest.mark.parametrize("arch", ["gpt", "llama"])
def test_fewest_bytes_by_listing_them(make_case: Callable[..., Case], arch: str) -> None:
    case = make_case(arch=arch, dtype="bfloat16", vocab=500)
    model = build_model(case, attention.build(case))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    if arch == "llama":
        table = model.embedding.weight
        weights -= (table.shape[0] - case.tokens) * table.shape[1] * table.element_size()
    qkvo = 4 * case.tokens * case.d_model * 2
    logits = case.tokens * case.vocab * 2
    tokens = case.tokens * 8
    assert min_bytes(case) == weights + case.layers * qkvo + logits + tokens

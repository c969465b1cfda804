"""Refusals keep the library's reasons; nothing else is taken for a refusal; switches are restored."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscale.case import Case
from attnscale.measure import attention
from attnscale.measure.attention import Attention

# As an H200 with torch 2.11 said it for float32.
FLASH_WARNINGS = [
    "Memory efficient kernel not used because: (Triggered internally at /pytorch/aten/src/sdp_utils.cpp:912.)",
    "Memory Efficient attention has been runtime disabled. (Triggered internally at /pytorch/aten/src/x.h:1.)",
    "Flash attention kernel not used because: (Triggered internally at /pytorch/aten/src/sdp_utils.cpp:914.)",
    "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float, Key dtype: "
    "float, and Value dtype: float instead. (Triggered internally at /pytorch/aten/src/sdp_utils_cpp.h:99.)",
    "CuDNN attention kernel not used because: (Triggered internally at /pytorch/aten/src/sdp_utils.cpp:916.)",
    "cuDNN attention has been runtime disabled. (Triggered internally at /pytorch/aten/src/x.cpp:7.)",
]


def failing(error: Exception, texts: list[str]) -> Attention:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for text in texts:
            warnings.warn(text, stacklevel=1)
        raise error

    return Attention(backend="flash", attend=attend, gqa="none", causal=True)


def test_a_refusal_keeps_the_reasons_and_drops_the_rest(case: Case) -> None:
    error = RuntimeError("No available kernel. Aborting execution.")
    reason = attention.why_refused(case, failing(error, FLASH_WARNINGS))
    assert reason == (
        "naive on cpu: Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query "
        "dtype: float, Key dtype: float, and Value dtype: float instead."
    )


@pytest.mark.parametrize(
    "text",
    [
        "No viable backend for scaled_dot_product_attention was found.",
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
        "CUDA error: invalid argument\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: invalid configuration argument",
    ],
)
def test_without_reasons_the_error_speaks(case: Case, text: str) -> None:
    reason = attention.why_refused(case, failing(RuntimeError(text), []))
    assert reason == f"naive on cpu: {text.splitlines()[0]}"


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("an illegal memory access"), ValueError("x")],
    ids=["oom", "unknown", "other-type"],
)
def test_what_is_no_refusal_is_raised(case: Case, error: Exception) -> None:
    with pytest.raises(type(error)):
        attention.why_refused(case, failing(error, []))


@pytest.mark.parametrize("backend", ["math", "flash", "efficient", "cudnn"])
def test_pinning_leaves_one_switch_on_and_restores_all(
    make_case: Callable[..., Case], backend: str
) -> None:
    switches = {
        "math": torch.backends.cuda.math_sdp_enabled,
        "flash": torch.backends.cuda.flash_sdp_enabled,
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    }
    before = {name: enabled() for name, enabled in switches.items()}
    with attention.build(make_case(backend=backend)).pinned():
        assert {name for name, enabled in switches.items() if enabled()} == {backend}
    assert {name: enabled() for name, enabled in switches.items()} == before


@pytest.mark.parametrize(
    ("backend", "picked"),
    [("naive", "naive"), ("naive_inplace", "naive_inplace"), ("math", "math"), ("flash", "flash"), ("auto", "flash")],
)
def test_what_the_dispatcher_picks_on_a_cpu(
    make_case: Callable[..., Case], backend: str, picked: str
) -> None:
    case = make_case(backend=backend)
    assert attention.chosen(case, attention.build(case)) == picked


def test_the_inplace_mask_copies_nothing(make_case: Callable[..., Case]) -> None:
    """Out of place masked_fill clones the scores first: the memcpy that a profile hides."""
    counts = {}
    for backend in ("naive", "naive_inplace"):
        case = make_case(backend=backend)
        q, k, v = (torch.randn(2, 4, 16, 8) for _ in range(3))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            attention.build(case).attend(q, k, v)
        names = [event.name for event in profile.events()]
        counts[backend] = (names.count("aten::masked_fill"), names.count("aten::masked_fill_"))
    assert counts["naive"][0] == 1
    assert counts["naive_inplace"] == (0, 1)

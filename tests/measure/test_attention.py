"""Refusals keep the library's reasons; nothing else is taken for a refusal; switches are restored."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscale.case import Case
from attnscale.measure import attention
from attnscale.measure.attention import Attention

# As an H200 with torch 2.11 said it for float32, its build paths shortened.
FLASH_WARNINGS = [
    "Memory efficient kernel not used because: (Triggered internally at /pytorch/sdp_utils.cpp:912.)",
    "Memory Efficient attention has been runtime disabled. (Triggered internally at /pytorch/x.h:1.)",
    "Flash attention kernel not used because: (Triggered internally at /pytorch/sdp_utils.cpp:914.)",
    "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float, Key "
    "dtype: float, and Value dtype: float instead. (Triggered internally at /pytorch/sdp_utils.h:99.)",
    "CuDNN attention kernel not used because: (Triggered internally at /pytorch/sdp_utils.cpp:916.)",
    "cuDNN attention has been runtime disabled. (Triggered internally at /pytorch/x.cpp:7.)",
]


def failing(error: Exception, texts: list[str]) -> Attention:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for text in texts:
            warnings.warn(text, stacklevel=1)
        raise error

    return Attention(backend="flash", attend=attend, gqa="none", causal=True)


@pytest.fixture
def flash_case(make_case: Callable[..., Case]) -> Case:
    return make_case(backend="flash")


def test_a_refusal_keeps_the_reasons_and_drops_the_rest(flash_case: Case) -> None:
    error = RuntimeError("No available kernel. Aborting execution.")
    reason = attention.why_refused(flash_case, failing(error, FLASH_WARNINGS))
    assert reason == (
        "flash on cpu: Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query "
        "dtype: float, Key dtype: float, and Value dtype: float instead."
    )


@pytest.mark.parametrize(
    "text",
    [
        "No viable backend for scaled_dot_product_attention was found.",
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
        "CUDA error: invalid argument\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: invalid configuration argument",
        "cutlassF: no kernel found to launch!",
        "This flash attention build does not support headdim not being a multiple of 32.",
    ],
    ids=["cpu", "cudnn-plans", "cuda-grid", "cuda-launch", "efficient-kernel", "flash-head-dim"],
)
def test_without_reasons_the_error_speaks(flash_case: Case, text: str) -> None:
    reason = attention.why_refused(flash_case, failing(RuntimeError(text), []))
    assert reason == f"flash on cpu: {text.splitlines()[0]}"


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_kernel_that_no_cpu_has_is_refused_in_these_words(
    make_case: Callable[..., Case], backend: str
) -> None:
    case = make_case(backend=backend)
    reason = attention.why_refused(case, attention.build(case))
    assert reason is not None
    assert reason.startswith(
        f"{backend} on cpu: PyTorch has this kernel for CUDA devices only; No viable"
    )
    assert "\n" not in reason


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("cuDNN Frontend error: execute failed, and code: CUDNN_STATUS_EXECUTION_FAILED"),
        ValueError("x"),
    ],
    ids=["oom", "cpu-oom", "fault", "cudnn-fault", "other-type"],
)
def test_what_is_no_refusal_is_raised(flash_case: Case, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        attention.why_refused(flash_case, failing(error, FLASH_WARNINGS))
    assert raised.value is error


@pytest.mark.parametrize("backend", ["math", "flash", "efficient", "cudnn"])
def test_pinning_leaves_one_switch_on_and_restores_all(
    make_case: Callable[..., Case], backend: str
) -> None:
    switches: dict[str, Callable[[], bool]] = {
        "math": torch.backends.cuda.math_sdp_enabled,
        "flash": torch.backends.cuda.flash_sdp_enabled,
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    }
    before = {name: enabled() for name, enabled in switches.items()}
    seen: list[str] = []

    def interrupted() -> None:
        with attention.build(make_case(backend=backend)).pinned():
            seen.extend(name for name, enabled in switches.items() if enabled())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [backend]
    assert {name: enabled() for name, enabled in switches.items()} == before


@pytest.mark.parametrize(
    ("backend", "picked"),
    [
        ("naive", "naive"),
        ("naive_inplace", "naive_inplace"),
        ("math", "math"),
        ("flash", "flash"),
        ("auto", "flash"),
    ],
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
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        ) as profile:
            attention.build(case).attend(q, k, v)
        names = [event.name for event in profile.events()]
        counts[backend] = (names.count("aten::masked_fill"), names.count("aten::masked_fill_"))
    assert counts["naive"][0] == 1
    assert counts["naive_inplace"] == (0, 1)

"""Occupancy against figures that others published."""

import pytest

from attnscale.evidence.occupancy import occupancy
from attnscale.profile import DeviceLimits, Kernel

A100 = DeviceLimits(
    capability=(8, 0),
    sm_count=108,
    threads_per_sm=2048,
    registers_per_sm=65536,
    shared_per_sm_bytes=164 * 1024,
    shared_per_block_optin_bytes=163 * 1024,
)
H200 = DeviceLimits(
    capability=(9, 0),
    sm_count=132,
    threads_per_sm=2048,
    registers_per_sm=65536,
    shared_per_sm_bytes=228 * 1024,
    shared_per_block_optin_bytes=227 * 1024,
)
T4 = DeviceLimits(
    capability=(7, 5),
    sm_count=40,
    threads_per_sm=1024,
    registers_per_sm=65536,
    shared_per_sm_bytes=64 * 1024,
    shared_per_block_optin_bytes=64 * 1024,
)


def kernel(threads: int, registers: int, shared_bytes: int, blocks: int = 10**6) -> Kernel:
    return Kernel(
        name="k",
        kind="kernel",
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        registers=registers,
        shared_bytes=shared_bytes,
    )


@pytest.mark.parametrize(
    ("one", "limits", "fraction", "limited_by"),
    [
        # flash on an A100: "13%" in the published profile
        (kernel(128, 255, 49152), A100, 0.125, "registers"),
        (kernel(256, 32, 0), A100, 1.0, "warps"),
        # NVIDIA's calculator: 256 threads of 40 registers fill 6 blocks on 64 KiB of registers
        (kernel(256, 40, 0), A100, 0.75, "registers"),
        # a block that takes all shared memory
        (kernel(384, 168, 227 * 1024), H200, 12 / 64, "registers"),
        (kernel(128, 64, 100 * 1024), H200, 8 / 64, "shared memory"),
        # 1 KiB a block is the system's since compute capability 8.0: 2 blocks of 113.5 KiB don't fit
        (kernel(64, 32, 113 * 1024), H200, 4 / 64, "shared memory"),
        (kernel(64, 32, 113 * 1024 + 128), H200, 2 / 64, "shared memory"),
        # and none before
        (kernel(64, 32, 32 * 1024), T4, 4 / 32, "shared memory"),
        (kernel(32, 16, 0), H200, 0.5, "blocks"),
        (kernel(32, 16, 0), T4, 0.5, "blocks"),
        (kernel(33, 16, 0), H200, 1.0, "warps"),
    ],
    ids=["flash", "full", "regs", "whole-sm", "shared", "two-fit", "two-do-not", "t4", "blocks",
         "t4-blocks", "a-warp-and-a-thread"],
)  # fmt: skip
def test_occupancy(one: Kernel, limits: DeviceLimits, fraction: float, limited_by: str) -> None:
    found = occupancy(one, limits)
    assert found is not None
    assert found.theoretical == pytest.approx(fraction)
    assert found.limited_by == limited_by
    assert found.estimated == found.theoretical


def test_a_small_grid_fills_less() -> None:
    found = occupancy(kernel(256, 32, 0, blocks=132), H200)
    assert found is not None
    assert found.theoretical == 1.0
    assert found.estimated == pytest.approx(8 / 64)


@pytest.mark.parametrize(
    "lacking",
    [{"block": None}, {"registers": None}, {"shared_bytes": None}, {"shared_bytes": 228 * 1024}],
    ids=["block", "registers", "shared", "too-much"],
)
def test_what_is_not_known_is_none(lacking: dict[str, object]) -> None:
    assert occupancy(kernel(128, 32, 0).model_copy(update=lacking), H200) is None

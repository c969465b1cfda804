"""Occupancy against figures that others published, and against NVIDIA's calculator."""

import ctypes
import importlib.util
import math
import shutil
import subprocess
from collections.abc import Callable

import pytest

from attnscale.evidence.occupancy import occupancy
from attnscale.profile import DeviceLimits, Kernel
from tests.evidence.profiles import H200

A100 = DeviceLimits(
    capability=(8, 0),
    sm_count=108,
    threads_per_sm=2048,
    registers_per_sm=65536,
    shared_per_sm_bytes=164 * 1024,
    shared_per_block_optin_bytes=163 * 1024,
)
L40S = DeviceLimits(
    capability=(8, 9),
    sm_count=142,
    threads_per_sm=1536,
    registers_per_sm=65536,
    shared_per_sm_bytes=100 * 1024,
    shared_per_block_optin_bytes=99 * 1024,
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


_SHIM = """
#include <climits>
#include <cstddef>
#include <cuda_occupancy.h>
extern "C" int blocks(int major, int minor, int threads_per_sm, int registers, size_t shared_sm,
                      size_t optin, int numRegs, size_t shared, int threads) {
    cudaOccDeviceProp device;
    device.computeMajor = major; device.computeMinor = minor; device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = threads_per_sm; device.regsPerBlock = registers;
    device.regsPerMultiprocessor = registers; device.warpSize = 32; device.sharedMemPerBlock = 49152;
    device.sharedMemPerMultiprocessor = shared_sm; device.numSms = 132;
    device.sharedMemPerBlockOptin = optin; device.reservedSharedMemPerBlock = major >= 8 ? 1024 : 0;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = INT_MAX; kernel.numRegs = numRegs; kernel.sharedSizeBytes = 0;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; kernel.maxDynamicSharedSizeBytes = optin;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state; cudaOccResult result;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared))
        return -1;
    return result.activeBlocksPerMultiprocessor;
}
"""


@pytest.fixture(scope="module")
def nvidias(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """Blocks an SM by NVIDIA's own calculator."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    header = importlib.util.find_spec("nvidia.cuda_runtime")
    if compiler is None or header is None:
        pytest.skip("no C++ compiler" if compiler is None else "nvidia-cuda-runtime-cu12 is missing")
    package = next(iter(header.submodule_search_locations or [""]))
    folder = tmp_path_factory.mktemp("occupancy")
    (folder / "shim.cpp").write_text(_SHIM)
    built = [compiler, "-shared", "-fPIC", f"-I{package}/include", "-o", "shim.so", "shim.cpp"]
    subprocess.run(built, cwd=folder, check=True)
    function = ctypes.CDLL(str(folder / "shim.so")).blocks
    size, number = ctypes.c_size_t, ctypes.c_int
    function.argtypes = [number, number, number, number, size, size, number, size, number]

    def blocks(one: Kernel, limits: DeviceLimits) -> int:
        return int(
            function(
                *limits.capability,
                limits.threads_per_sm,
                limits.registers_per_sm,
                limits.shared_per_sm_bytes,
                limits.shared_per_block_optin_bytes,
                one.registers,
                one.shared_bytes,
                math.prod(one.block or ()),
            )
        )

    return blocks


@pytest.mark.parametrize("limits", [A100, H200, T4, L40S], ids=["A100", "H200", "T4", "L40S"])
def test_it_is_nvidias_own_calculator(limits: DeviceLimits, nvidias: Callable[..., int]) -> None:
    sizes = [0, 1, 1024, 10_000, 16384, 32768, 49152, 65536, 70_000, 100_000, 113 * 1024, 227 * 1024]
    compared = 0
    for threads in (32, 33, 64, 96, 128, 160, 256, 384, 512, 768, 1024):
        for registers in (16, 24, 32, 37, 40, 64, 72, 96, 128, 168, 200, 255):
            for shared in (size for size in sizes if size <= limits.shared_per_block_optin_bytes):
                one = kernel(threads, registers, shared)
                found = occupancy(one, limits)
                warps = limits.threads_per_sm // 32
                ours = 0 if found is None else found.theoretical * warps / math.ceil(threads / 32)
                assert ours == pytest.approx(nvidias(one, limits)), (threads, registers, shared)
                compared += 1
    assert compared > 800


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

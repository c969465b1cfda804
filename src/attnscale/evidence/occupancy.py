"""Occupancy: how many of a streaming multiprocessor's warps a kernel can keep resident.

After NVIDIA's CUDA Occupancy Calculator (cuda_occupancy.h): blocks are limited by warps, by block slots,
by registers, which are given out in units of 256 a warp within each of four partitions, and by shared
memory, of which the system keeps 1 KiB a block since compute capability 8.0. Kineto's own estimate, the
raw one, passes the limit without opt-in for shared memory and gives up, with 0, on any kernel above it.
"""

import math
from dataclasses import dataclass

from attnscale.profile import DeviceLimits, Kernel

WARP = 32
_PARTITIONS = 4
_REGISTER_UNIT = 256
_FEWER = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (10, 1): 24, (11, 0): 24}
_MOST_BLOCKS = _FEWER | {(12, 0): 24, (12, 1): 24}
"""Blocks an SM by compute capability, where it is not 32. Source: CUDA C++ Programming Guide, table
"Technical Specifications per Compute Capability"; no driver query that torch offers has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Of one kernel on one device, fractions of the warps an SM can hold."""

    theoretical: float
    """When enough blocks are there to fill every SM."""
    estimated: float
    """With the blocks that the grid has: what the raw estimate means to be."""
    limited_by: str
    """warps, blocks, registers or shared memory."""


def occupancy(kernel: Kernel, limits: DeviceLimits) -> Occupancy | None:
    """None where the trace lacks a part, or the kernel could not run on such a device."""
    if kernel.block is None or kernel.registers is None or kernel.shared_bytes is None:
        return None
    warps = math.ceil(math.prod(kernel.block) / WARP)
    most_warps = limits.threads_per_sm // WARP
    bounds = {
        "warps": most_warps // warps,
        "blocks": _MOST_BLOCKS.get(limits.capability, 32),
        "registers": _by_registers(kernel.registers, warps, limits),
        "shared memory": _by_shared_memory(kernel.shared_bytes, limits),
    }
    limited_by = min(bounds, key=lambda name: bounds[name])
    blocks = bounds[limited_by]
    if blocks == 0:
        return None
    full = blocks * warps / most_warps
    grid = math.prod(kernel.grid) / limits.sm_count if kernel.grid else blocks
    return Occupancy(
        theoretical=full,
        estimated=min(blocks, grid) * warps / most_warps,
        limited_by=limited_by,
    )


def _by_registers(registers: int, warps: int, limits: DeviceLimits) -> int:
    if registers == 0:
        return limits.threads_per_sm
    a_warp = math.ceil(registers * WARP / _REGISTER_UNIT) * _REGISTER_UNIT
    return limits.registers_per_sm // _PARTITIONS // a_warp * _PARTITIONS // warps


def _by_shared_memory(shared_bytes: int, limits: DeviceLimits) -> int:
    since_ampere = limits.capability >= (8, 0)
    reserved, unit = (1024, 128) if since_ampere else (0, 256)
    if shared_bytes > limits.shared_per_block_optin_bytes:
        return 0
    a_block = math.ceil((shared_bytes + reserved) / unit) * unit
    return limits.shared_per_sm_bytes // a_block if a_block else limits.threads_per_sm

"""Device memory of one case, above what was there before it, and its release afterwards.

Allocated is what tensors hold, reserved what the caching allocator took from the driver; they are
never mixed. On a CPU torch keeps no such count, so there is none.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of device memory."""

    allocated: int
    reserved: int


def release(device: str) -> None:
    """Give back everything that no living object holds, so that the next case starts at the baseline.

    cuBLAS workspaces come from the same allocator and outlive a case. Without clearing them the
    first case would carry what later ones find already there.
    """
    gc.collect()
    gc.freeze()  # what lives on is set aside: going through torch's objects again takes 0.2 s a case
    flush(device)


def flush(device: str) -> None:
    """Give unused blocks and workspaces back to the driver, without looking for garbage."""
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def usage(device: str) -> Usage | None:
    """What is held now; None on a CPU."""
    if device != "cuda":
        return None
    return Usage(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())


def reset_peak(device: str) -> None:
    """Forget earlier peaks."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_of(function: Callable[[], Result], device: str) -> tuple[Result, int | None]:
    """Its result, and the most bytes that it held beyond what was there; None on a CPU."""
    before = usage(device)
    reset_peak(device)
    result = function()
    most = peak(device)
    return result, most.allocated - before.allocated if before and most else None


def peak(device: str) -> Usage | None:
    """The most that was held since the last reset; None on a CPU."""
    if device != "cuda":
        return None
    return Usage(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())

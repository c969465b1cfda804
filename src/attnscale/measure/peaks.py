"""What this card can do: its fastest matrix product and its copy, measured on random data.

The denominators of MAMFU and of bandwidth utilisation (names and method: Bekman, Machine Learning
Engineering, "Maximum Achievable Matmul FLOPS"). Measured once a process and dtype, in windows like
the cases' own, at the clock that the card sustains. Zeros are never used: the H200 multiplies them 15%
faster than random numbers.
"""

import functools
import statistics
from dataclasses import dataclass

import torch

from attnscale.case import DTYPE_BYTES
from attnscale.measure import memory
from attnscale.measure.timing import QueuedWindows, first_call_ms

_SIZES = (4096, 8192, 16384)
_COPY_BYTES = 2**30
_WINDOWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Null with a reason where it could not be measured."""

    matmul_flops_per_s: float | None = None
    copy_bytes_per_s: float | None = None
    nulls: dict[str, str]


@functools.cache
def measured_peaks(device: str, dtype: str) -> Peaks:
    """Of the device of this process; about a second on a large GPU."""
    names = ("matmul_flops_per_s", "copy_bytes_per_s")
    if device != "cuda":
        return Peaks(nulls=dict.fromkeys(names, "device is cpu"))
    values: dict[str, float | None] = {}
    nulls: dict[str, str] = {}
    for name, ask in zip(names, (_matmul, _copy), strict=True):
        try:
            values[name] = ask(dtype)
        except torch.OutOfMemoryError:
            values[name] = None
            nulls[name] = "no room on the device to measure it"
        memory.flush(device)
    return Peaks(**values, nulls=nulls)


def _matmul(dtype: str) -> float:
    """Operations a second of the fastest size."""
    best = 0.0
    for size in _SIZES if dtype != "float32" else _SIZES[:2]:
        a, b, out = (_random(size * size, dtype).view(size, size) for _ in range(3))
        ms = _sustained_ms(functools.partial(torch.matmul, a, b, out=out))
        best = max(best, 2 * size**3 / ms * 1e3)
    return best


def _copy(dtype: str) -> float:
    """Bytes read and written a second."""
    source = _random(_COPY_BYTES // DTYPE_BYTES[dtype], dtype)
    copy = functools.partial(torch.empty_like(source).copy_, source)
    return 2 * _COPY_BYTES / _sustained_ms(copy) * 1e3


def _random(count: int, dtype: str) -> torch.Tensor:
    return torch.randn(count, dtype=getattr(torch, dtype), device="cuda")


def _sustained_ms(work: functools.partial[torch.Tensor]) -> float:
    work()
    take = QueuedWindows(work, first_call_ms(work, "cuda"))
    ms = statistics.median([take() for _ in range(_WINDOWS)])
    torch.cuda.synchronize()
    return ms

"""What ran in one forward: kernels, in the order launched, each with where in the model it was launched.

Part of the record, and as plain: evidence/ says what it means.
"""

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, FiniteFloat


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Kernel(_Frozen):
    """A kind of work on the device: what stays the same each time that it is launched."""

    name: str
    kind: str
    """kernel, memcpy, memset, or cpu_op on a CPU."""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    """Threads."""
    registers: int | None = None
    """Of a thread."""
    shared_bytes: int | None = None
    """Of a block, static and dynamic."""
    occupancy_raw: FiniteFloat | None = None
    """The profiler's estimate, a fraction. 0 where it gives up: above 48 KiB of shared memory."""
    bytes: int | None = None
    """Of a memcpy or memset."""
    api: str | None = None
    """What launched it: cudaLaunchKernel, cuLaunchKernelEx and so on."""


class Launch(NamedTuple):
    """One piece of work of one forward, in the order launched. The first three are indices."""

    kernel: int
    module: int
    op: int
    at_us: float
    """Its start, from that of the first; of a profiled forward, in which launching takes longer."""
    us: float
    """How long it ran, median over the steps. Self time for a cpu_op."""
    launch_us: float
    """What the launching call took on the CPU."""


class DeviceLimits(_Frozen):
    """What decides how many blocks fit on a streaming multiprocessor (SM)."""

    capability: tuple[int, int]
    sm_count: int
    threads_per_sm: int
    registers_per_sm: int
    shared_per_sm_bytes: int
    shared_per_block_optin_bytes: int


class Profile(_Frozen):
    """What ran in one forward, from a profiled pass apart from all timing."""

    steps: int
    """Forwards profiled; all of them ran the same kernels."""
    kernels: list[Kernel]
    modules: list[str]
    """Paths such as layers.3.attention.core; the empty one is outside any module."""
    ops: list[str]
    """Enclosing operators, outermost first, with > between them."""
    launches: list[Launch]
    limits: DeviceLimits | None = None
    """Null on a CPU."""
    trace_file: str | None = None
    """Beside the record, where it was kept."""

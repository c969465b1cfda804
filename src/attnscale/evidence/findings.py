"""What the kernels of a case say about why it is fast or slow, and what to change.

Each finding names the kernels, counts and microseconds that it rests on. A false one is worse than one
that is missed: what takes less than a hundredth of a forward is no finding, and each rule asks for an
operator or a kernel that has no other meaning.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from attnscale.evidence.categories import Category, Row, gemm, rows
from attnscale.evidence.occupancy import occupancy
from attnscale.record import Kind, Record

_WORTH = 0.01
"""Of a forward's kernel time."""
_HALF = ("bfloat16", "float16")
_MATH = "_scaled_dot_product_attention_math"
_LOW = 0.25
_GEMMS = 0.7
_CHAIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Of one case."""

    name: str
    kernels: tuple[str, ...]
    """Names, each once."""
    count: int
    """How many times they ran in one forward."""
    us: float
    """What they took in one forward."""
    advice: str
    """What it means and what to change, a sentence or two."""
    gain_ms: float | None = None
    """At most this much of a forward, or just this where ``measured``."""
    measured: bool = False

    @property
    def gain(self) -> str:
        if self.gain_ms is None:
            return ""
        return f"{'gains' if self.measured else 'gains at most'} {self.gain_ms:.3g} ms a forward"


Rule = Callable[[Record, Sequence[Row]], Iterator[Finding]]


def findings(record: Record) -> list[Finding]:
    """All of a case, the dearest first; none without a profile, and none of a CPU's operators."""
    profile = record.outcome.profile
    if profile is None or record.case.device == "cpu":
        return []
    found = rows(profile)
    every = [finding for rule in _RULES for finding in rule(record, found)]
    return sorted(every, key=lambda finding: -(finding.gain_ms or 0.0))


def _hidden_memcpy(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    which = [r for r in found if r.kernel.kind == "memcpy" and re.search(r"masked_fill\b(?!_)", r.op)]
    if _worth(which, found):
        yield _finding(
            "hidden Memcpy",
            which,
            "masked_fill out of place copies the score matrix before it fills it; masked_fill_ does not "
            "(backend=naive_inplace)",
            gain_us=_us(which),
        )


def _fp32_upcast(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    if record.case.dtype not in _HALF:
        return
    which = [
        r
        for r in found
        if r.in_attention and r.category is Category.GEMM and gemm(r.kernel.name).units == "CUDA cores"
    ]
    which = [r for r in which if gemm(r.kernel.name).dtype == "float32"]
    if _worth(which, found):
        yield _finding(
            "fp32 upcast on CUDA cores",
            which,
            f"the inputs are {record.case.dtype}, but attention's products run in float32, without "
            "Tensor Cores; a fused backend keeps the dtype, and so does "
            "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True), at a loss of accuracy",
            gain_us=_us(which),
        )


def _mask_rebuilt(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    which = [r for r in found if r.in_attention and _MATH in r.op and r.category is Category.MASK]
    if record.case.causal and any("tril" in r.op for r in which) and _worth(which, found):
        yield _finding(
            "mask rebuilt every call",
            which,
            "math makes its causal mask anew in every layer of every forward; the fused backends apply "
            "it by index",
            gain_us=_us(which),
        )


def _safe_softmax(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    inside = [r for r in found if r.in_attention and "aten::_safe_softmax" in r.op]
    which = [r for r in inside if not re.search(r"softmax", r.kernel.name, re.IGNORECASE)]
    if _worth(which, found):
        yield _finding(
            "safe softmax",
            which,
            "beside the softmax itself math searches the scores for rows that are masked wholly and "
            "writes zeros there; no row of a causal mask is",
            gain_us=_us(which),
        )


def _score_matrix(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    core = [r for r in found if r.in_attention]
    if not core or any(r.category is Category.ATTENTION for r in core):
        return
    case = record.case
    which = [r for r in core if r.category not in (Category.COPY, Category.EMBEDDING)]
    matrix = case.batch * case.heads * case.seq**2 * (2 if case.dtype in _HALF else 4)
    least = 2 * case.batch * case.seq * case.head_dim * (case.heads + case.kv_heads)
    least *= 2 if case.dtype in _HALF else 4
    if matrix > least and _worth(which, found):
        a_layer = len(which) / case.layers
        yield _finding(
            "score matrix in memory",
            which,
            f"{a_layer:.3g} kernels a layer write or read a score matrix of {matrix / 2**20:.4g} MiB, "
            f"where Q, K, V and the output have {least / 2**20:.4g}; the fused backends never store it",
            gain_us=_us(which),
        )


def _copies_before(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    which = [
        r
        for r in found
        if (r.in_attention or r.module.endswith(".attention"))
        and r.category in (Category.COPY, Category.MEMCPY)
        and re.search(r"aten::(contiguous|clone|copy_|_to_copy)", r.op)
        and not re.search(r"masked_fill", r.op)
    ]
    if _worth(which, found):
        yield _finding(
            "transposes and copies around attention",
            which,
            "Q, K, V or the output change their layout or dtype in memory around attention; a backend "
            "that takes [batch, seq, heads, head_dim] as it is needs none",
            gain_us=_us(which),
        )


def _unfused_chain(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    """Runs of elementwise kernels in one module: fused, they are one pass over memory instead of n."""
    light = (Category.ELEMENTWISE, Category.MASK, Category.COPY)
    chains: list[list[Row]] = []
    for row in found:
        goes_on = chains and chains[-1] and chains[-1][-1].module == row.module
        if row.category not in light:
            chains.append([])
        elif goes_on:
            chains[-1].append(row)
        else:
            chains.append([row])
    long = [chain for chain in chains if len(chain) >= _CHAIN and not chain[0].in_attention]
    which = [row for chain in long for row in chain]
    if _worth(which, found):
        gain = sum(_us(chain) * (1 - 1 / len(chain)) for chain in long)
        yield _finding(
            "unfused elementwise chain",
            which,
            f"{len(long)} times, {_CHAIN} or more elementwise kernels follow one another in one module; "
            "torch.compile or a fused kernel makes each chain one pass over memory",
            gain_us=gain,
        )


def _launch_bound(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    metrics = record.outcome.metrics
    if record.outcome.kind is not Kind.LAUNCH_BOUND or not metrics.device_ms or not metrics.latency_ms:
        return
    kernels = [r for r in found if r.kernel.kind == "kernel"]
    yield Finding(
        name="launch-bound",
        kernels=(),
        count=len(kernels),
        us=_us(found),
        advice=f"the CPU needs {metrics.host_ms:.3g} ms to launch {len(kernels)} kernels, which the GPU "
        f"runs in {metrics.device_ms:.3g}: the backend hardly matters until they come as a CUDA graph "
        "(torch.compile with mode=reduce-overhead) or the batch grows",
        gain_ms=max(0.0, metrics.latency_ms - metrics.device_ms),
        measured=True,
    )


def _low_occupancy(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    limits = record.outcome.profile.limits if record.outcome.profile else None
    which = []
    for row in found:
        if limits and row.category is Category.ATTENTION:
            known = occupancy(row.kernel, limits)
            if known and known.theoretical <= _LOW:
                which.append((row, known))
    if which and _worth([row for row, _ in which], found):
        row, known = which[0]
        raw = row.kernel.occupancy_raw
        said = "" if raw is None else f" (the profiler says {raw:.0%}"
        said += ", where 0 means that it gave up above 48 KiB of shared memory)" if raw == 0 else ")"
        yield _finding(
            "low occupancy, on purpose",
            [row for row, _ in which],
            f"{known.theoretical:.0%} of the warps fit{said if raw is not None else ''}, limited by "
            f"{known.limited_by}: fused attention keeps its tiles in registers and shared memory and "
            "hides latency by its own pipeline; nothing is to be changed",
        )


def _plan_cost(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    metrics = record.outcome.metrics
    which = [r for r in found if re.search(r"cudnn_generated", r.kernel.name)]
    first, later = metrics.first_call_ms, metrics.latency_ms
    if which and first and later and first - later > max(10.0, later):
        yield _finding(
            "cuDNN's plans cost the first call",
            which,
            f"the first forward took {first:.3g} ms, {first - later:.3g} more than later ones; "
            "with many different shapes that is paid again for each, by every thread",
        )


def _gemms_dominate(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    total = _us(found)
    which = [r for r in found if r.category is Category.GEMM and not r.in_attention]
    core = _us([r for r in found if r.in_attention])
    if total and _us(which) / total >= _GEMMS:
        yield _finding(
            "matrix products dominate",
            which,
            f"{_us(which) / total:.0%} of the time is in matrix products outside attention and "
            f"{core / total:.0%} in attention: no backend can gain more than that here",
            gain_us=core,
        )


def _tf32_off(record: Record, found: Sequence[Row]) -> Iterator[Finding]:
    if record.case.dtype != "float32" or record.environment.matmul_precision != "highest":
        return
    which = [r for r in found if r.category is Category.GEMM]
    which = [r for r in which if gemm(r.kernel.name).units == "CUDA cores"]
    if _worth(which, found):
        yield _finding(
            "TF32 is off",
            which,
            "float32 matrix products run on CUDA cores; where 10 bits of mantissa are enough, "
            'torch.set_float32_matmul_precision("high") gives them Tensor Cores',
            gain_us=_us(which),
        )


_RULES: Sequence[Rule] = (
    _hidden_memcpy,
    _fp32_upcast,
    _mask_rebuilt,
    _safe_softmax,
    _score_matrix,
    _copies_before,
    _unfused_chain,
    _launch_bound,
    _low_occupancy,
    _plan_cost,
    _gemms_dominate,
    _tf32_off,
)


def _finding(name: str, which: Sequence[Row], advice: str, gain_us: float | None = None) -> Finding:
    return Finding(
        name=name,
        kernels=tuple(dict.fromkeys(row.kernel.name for row in which)),
        count=len(which),
        us=_us(which),
        advice=advice,
        gain_ms=None if gain_us is None else gain_us / 1e3,
    )


def _worth(which: Sequence[Row], found: Sequence[Row]) -> bool:
    return _us(which) > 0 and _us(which) >= _WORTH * _us(found)


def _us(found: Sequence[Row]) -> float:
    return sum(row.us for row in found)

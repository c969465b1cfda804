"""Is what a backend computes right? Attention and the whole forward against fp32, before any timing.

- Attention runs at the case's own shape. Early, middle and late rows of the result are compared with
  softmax(q k^T / sqrt(head_dim)) v, computed in float32 from the same q, k, v in chunks, so that memory
  is bounded at any seq. NaN and infinity are looked for in the whole result.
- The forward runs at a bounded size (``bounded``), against the same weights in float32 with that
  reference for its attention.

An error is a norm over a norm, |out - reference| / |reference|: of each row over batch, heads and
head_dim, and of each head over the rows of a zone. The worst one counts. A backend that is 1% off in
its last rows is 1% off there, however many rows are right.

Tolerances: the fused kernels and math keep scores in float32 and round probabilities and output once
each; they were measured to err by 0.2 to 0.3% in bfloat16 at any length (docs/log.md), so that 1% is
always seen. naive and naive_inplace round the scores as well, which is no fault but their nature: 0.5 to
1.8%, growing with seq. They are allowed five times as much.
"""

import copy
import dataclasses
import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscale.case import Case, Timing
from attnscale.measure import attention
from attnscale.measure.model import SelfAttention, build_model, random_tokens

ATTENTION_TOLERANCE = {"float32": 1e-4, "bfloat16": 8e-3, "float16": 1e-3}
_ROUNDED_SCORES = 5.0
FORWARD_TOLERANCE = {"float32": 1e-3, "bfloat16": 4e-2, "float16": 5e-3}

_ZONE_ROWS = 32
_MOST_BATCHES = 16
_CHUNK_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Error:
    """How far a result is from its reference."""

    value: float
    """Relative; infinite when the result is not finite."""
    where: str
    """Of the worst."""


def zones(seq: int) -> dict[str, Tensor]:
    """Early, middle and late rows: 32 each at most, indices into seq."""
    count = min(_ZONE_ROWS, seq)
    middle = (seq - count) // 2
    starts = {"early": 0, "middle": middle, "late": seq - count}
    return {name: torch.arange(start, start + count) for name, start in starts.items()}


@torch.inference_mode()
def attention_error(out: Tensor, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Error:
    """Of ``out: [batch, heads, seq, head_dim]``, as computed from q, k and v by some backend."""
    if not bool(torch.isfinite(out).all()):
        return Error(math.inf, "NaN or infinity in the result")
    batches = _spread(out.shape[0], _MOST_BATCHES)
    worst = Error(0.0, "")
    for name, rows in zones(out.shape[2]).items():
        wrong, whole = _squares(out, (q, k, v), batches, rows, causal=causal)
        by_row = (wrong.sum((0, 1)) / whole.sum((0, 1))).sqrt().max()
        by_head = (wrong.sum(2) / whole.sum(2)).sqrt().max()
        value = float(torch.maximum(by_row, by_head))
        if not value <= worst.value:  # NaN too
            worst = Error(value if math.isfinite(value) else math.inf, f"{name} rows")
    return worst


def reference_attention(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, *, causal: bool) -> Tensor:
    """Those rows in float32. q: [batch, heads, seq, head_dim], k, v: [batch, kv_heads, seq, head_dim];
    the result is [batch, heads, rows, head_dim].
    """
    group = q.shape[1] // k.shape[1]
    picked = q[:, :, rows].float().unflatten(1, (k.shape[1], group))  # [B, kv_heads, group, rows, D]
    scores = picked @ k.float().unsqueeze(2).transpose(-2, -1) * q.shape[-1] ** -0.5
    if causal:
        keys = torch.arange(k.shape[2], device=q.device)
        scores.masked_fill_(keys > rows.to(q.device)[:, None], -math.inf)
    return (torch.softmax(scores, dim=-1) @ v.float().unsqueeze(2)).flatten(1, 2)


def bounded(case: Case) -> Case:
    """The same block, backend and dtype, small enough for a float32 forward beside it at no cost."""
    group = case.heads // case.kv_heads
    kv_heads = min(case.kv_heads, max(1, 8 // group))
    heads = kv_heads * group
    return dataclasses.replace(
        case,
        model="bounded",
        seq=min(case.seq, 256),
        batch=min(case.batch, 2),
        heads=heads,
        kv_heads=kv_heads,
        layers=min(case.layers, 2),
        ffn_dim=min(case.ffn_dim, 4 * heads * case.head_dim),
        vocab=min(case.vocab, 1024),
        timing=_UNTIMED,
    )


_UNTIMED = Timing(settle_seconds=0.0, precision=0.0, min_samples=1, max_seconds=1.0, flush_l2=False)


@functools.cache
def forward_error(small: Case) -> Error | str:
    """Of the logits of a ``bounded`` case, worst row; the reason when the backend refuses that size.

    Known once it was asked for: the cases of a sweep over layers or long sequences share one.
    """
    attend = attention.build(small)
    refusal = attention.why_refused(small, attend)
    if refusal is not None:
        return f"refused at the bounded size: {refusal}"
    tokens = random_tokens(small)
    model = build_model(small, attend)
    with torch.inference_mode():
        with attend.pinned():
            logits = model(tokens).float()
        exact = copy.deepcopy(model).float()
        every_row = torch.arange(small.seq)
        for module in exact.modules():
            if isinstance(module, SelfAttention):
                module.attend = functools.partial(
                    reference_attention, rows=every_row, causal=small.causal
                )
        reference = exact(tokens)
    if not bool(torch.isfinite(logits).all()):
        return Error(math.inf, "NaN or infinity in the logits")
    wrong, whole = (tensor.square().sum((0, 2)) for tensor in (logits - reference, reference))
    ratio = (wrong / whole).sqrt()
    return Error(float(ratio.max()), f"row {int(ratio.argmax())}")


def too_far(case: Case, error: Error, forward: Error | str) -> str | None:
    """Why the case is wrong, in one line, or None."""
    for what, one, allowed in [
        ("attention", error, attention_tolerance(case)),
        ("the forward, at a bounded size,", forward, FORWARD_TOLERANCE[case.dtype]),
    ]:
        if isinstance(one, Error) and not one.value <= allowed:
            if math.isinf(one.value):
                return f"{what} of {case.backend} gave {one.where}"
            off = f"is {one.value:.2%} from its fp32 reference ({one.where})"
            return f"{what} of {case.backend} {off}; {allowed:.2%} is allowed in {case.dtype}"
    return None


def attention_tolerance(case: Case) -> float:
    """The relative error of attention that its dtype explains."""
    rounds_scores = case.backend in ("naive", "naive_inplace") and case.dtype != "float32"
    return ATTENTION_TOLERANCE[case.dtype] * (_ROUNDED_SCORES if rounds_scores else 1.0)


def _squares(
    out: Tensor, qkv: tuple[Tensor, Tensor, Tensor], batches: list[int], rows: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Squared error and squared reference, [batches, heads, rows], summed over head_dim."""
    q, k, v = qkv
    kv_heads, seq, head_dim = k.shape[1:]
    group = q.shape[1] // kv_heads
    a_head = 4 * seq * (2 * group * len(rows) + 3 * head_dim)  # float32: scores, softmax, k, v
    heads_at_once = max(1, min(kv_heads, _CHUNK_BYTES // a_head))
    batches_at_once = max(1, _CHUNK_BYTES // (a_head * kv_heads)) if heads_at_once == kv_heads else 1
    wrong, whole = [], []
    for i in range(0, len(batches), batches_at_once):
        some = batches[i : i + batches_at_once]
        parts = []
        for j in range(0, kv_heads, heads_at_once):
            kv, mine = slice(j, j + heads_at_once), slice(j * group, (j + heads_at_once) * group)
            exact = reference_attention(
                q[some, mine], k[some, kv], v[some, kv], rows.to(q.device), causal=causal
            )
            error = out[some, mine][:, :, rows.to(q.device)].float() - exact
            parts.append((error.square().sum(-1), exact.square().sum(-1)))
        wrong.append(torch.cat([part[0] for part in parts], dim=1))
        whole.append(torch.cat([part[1] for part in parts], dim=1))
    return torch.cat(wrong), torch.cat(whole)


def _spread(count: int, most: int) -> list[int]:
    """First, last, and evenly between."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})

"""Which attention backend ran, from its kernels: the proof in every row."""

import re
from collections.abc import Mapping, Sequence

from attnscale.evidence.categories import Category, Row

_FUSED: Mapping[str, re.Pattern[str]] = {
    "cudnn": re.compile(r"cudnn", re.IGNORECASE),
    "efficient": re.compile(r"fmha|efficient_attention", re.IGNORECASE),
    "flash": re.compile(r"flash", re.IGNORECASE),
}
"""Backend -> its kernels' names. cuDNN's contain "flash" as well, and so come first."""
_MATH = "_scaled_dot_product_attention_math"
_IN_PLACE = re.compile(r"(^|> )aten::masked_fill_$")
_OUT_OF_PLACE = re.compile(r"aten::masked_fill\b(?!_)")
_SDPA = re.compile(r"scaled_dot_product")


def ran(rows: Sequence[Row], *, causal: bool) -> str | None:
    """The backend whose fingerprint all layers bear; ``mixed: ...`` for several, None for none.

    Without a causal mask naive and naive_inplace are the same kernels: then naive stands for both.
    """
    by_layer: dict[str, list[Row]] = {}
    for row in rows:
        if row.in_attention:
            by_layer.setdefault(row.module, []).append(row)
    found = {_of_layer(layer, causal=causal) for layer in by_layer.values()}
    if len(found) > 1:
        return "mixed: " + ", ".join(sorted(str(name) for name in found))
    return next(iter(found), None)


def why_mismatch(
    backend: str, ran_instead: str | None, rows: Sequence[Row], *, causal: bool
) -> str | None:
    """One line when something else ran than what was asked for; None when it is as asked."""
    if backend == "auto" or ran_instead == backend:
        return None
    if not causal and {backend, ran_instead} == {"naive", "naive_inplace"}:
        return None
    names = list(dict.fromkeys(row.kernel.name for row in rows if row.in_attention))
    shown = ", ".join(name[:60] for name in names[:6])
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"asked for {backend}, and {ran_instead or 'no known backend'} ran: {shown}{more}"


def _of_layer(rows: Sequence[Row], *, causal: bool) -> str | None:
    fused = [row.kernel.name for row in rows if row.category is Category.ATTENTION]
    if fused:
        families = {_family(name) for name in fused}
        return families.pop() if len(families) == 1 else None
    ops = [row.op for row in rows]
    if any(_MATH in op for op in ops):
        return "math"
    categories = {row.category for row in rows}
    if any(_SDPA.search(op) for op in ops) or not {Category.GEMM, Category.SOFTMAX} <= categories:
        return None
    if not causal:
        return "naive"
    if any(_OUT_OF_PLACE.search(op) for op in ops):
        return "naive"
    return "naive_inplace" if any(_IN_PLACE.search(op) for op in ops) else None


def _family(name: str) -> str | None:
    return next((backend for backend, pattern in _FUSED.items() if pattern.search(name)), None)

"""Kernels as a table: one row a case, kernel and part of the model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnscale.analyse.where import part
from attnscale.evidence.categories import Category, Row, gemm, rows
from attnscale.evidence.occupancy import occupancy
from attnscale.record import Record

if TYPE_CHECKING:
    import pandas

COLUMNS = {
    name: kind
    for kind, names in (
        ("string", "key slug backend part category kernel kind api"),
        ("Int64", "count"),
        ("Float64", "us launch_us"),
        ("string", "grid block"),
        ("Int64", "registers shared_bytes bytes"),
        ("Float64", "occupancy_raw occupancy occupancy_estimated"),
        ("string", "limited_by gemm_units gemm_dtype"),
    )
    for name in names.split()
}
"""``us`` and ``launch_us`` are sums over ``count``. The raw occupancy is the profiler's; the others are
recomputed: with enough blocks, and with those of the grid."""


def kernel_frame(records: Sequence[Record]) -> "pandas.DataFrame":
    """Of every record that has a profile, the dearest first within a case."""
    import pandas as pd

    made = [row for record in records for row in _of(record)]
    return pd.DataFrame(made, columns=list(COLUMNS), dtype=object).astype(COLUMNS)


def _of(record: Record) -> list[dict[str, Any]]:
    profile = record.outcome.profile
    if profile is None:
        return []
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows(profile):
        groups.setdefault((row.kernel, part(row.module), row.category), []).append(row)
    made = []
    for (kernel, where, category), group in groups.items():
        known = occupancy(kernel, profile.limits) if profile.limits else None
        product = gemm(kernel.name) if category is Category.GEMM else None
        made.append(
            {
                "key": record.key,
                "slug": record.slug,
                "backend": record.case.backend,
                "part": where,
                "category": category.value,
                "kernel": kernel.name,
                "kind": kernel.kind,
                "api": kernel.api,
                "count": len(group),
                "us": sum(row.us for row in group),
                "launch_us": sum(row.launch.launch_us for row in group),
                "grid": _by(kernel.grid),
                "block": _by(kernel.block),
                "registers": kernel.registers,
                "shared_bytes": kernel.shared_bytes,
                "bytes": kernel.bytes,
                "occupancy_raw": kernel.occupancy_raw,
                "occupancy": known.theoretical if known else None,
                "occupancy_estimated": known.estimated if known else None,
                "limited_by": known.limited_by if known else None,
                "gemm_units": product.units if product else None,
                "gemm_dtype": product.dtype if product else None,
            }
        )
    return sorted(made, key=lambda row: -row["us"])


def _by(size: tuple[int, int, int] | None) -> str | None:
    return None if size is None else "x".join(str(one) for one in size)

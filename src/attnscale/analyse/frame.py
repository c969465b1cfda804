"""Records as a table: one row a case, units in the column names, a missing number null.

Also which columns were swept, for a plot or a table may show only those and must never average over
one that nobody looks at.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.record import Record

if TYPE_CHECKING:
    import pandas

AXES = (
    "model",
    "arch",
    "seq",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "layers",
    "ffn_dim",
    "vocab",
    "dtype",
    "causal",
    "device",
    "seed",
    "timing_warmup",
    "timing_samples",
    "timing_max_seconds",
)
"""Every swept column but backend, which is the hue of every figure."""

NUMERIC_AXES = ("seq", "batch", "heads", "kv_heads", "head_dim", "layers", "ffn_dim", "vocab")


def frame(records: Sequence[Record]) -> "pandas.DataFrame":
    """One row a record, in the order given. Integers and floats are pandas' nullable types."""
    import pandas as pd

    rows = [_row(record) for record in records]
    table = pd.DataFrame(rows, columns=list(_row_types()))
    return table.astype(_row_types())


def swept_axes(table: "pandas.DataFrame") -> tuple[str, ...]:
    """The axes with more than one value, each of which says something that those before it do not.

    An axis that follows one that was swept is left out: with model presets all shapes follow
    ``model``; with heads swept, kv_heads and ffn_dim follow ``heads``.
    """
    varying = [axis for axis in AXES if table[axis].nunique(dropna=False) > 1]
    kept: list[str] = []
    for axis in varying:
        if not any(_follows(table, axis, leader) for leader in kept):
            kept.append(axis)
    return tuple(kept)


def fixed_axes(table: "pandas.DataFrame") -> dict[str, Any]:
    """The axes with one value only, and that value."""
    return {axis: table[axis].iloc[0] for axis in AXES if table[axis].nunique(dropna=False) == 1}


def backends(table: "pandas.DataFrame") -> list[str]:
    """Every backend asked for, in the order first measured."""
    return list(table["backend"].unique())


def write_tables(table: "pandas.DataFrame", folder: Path) -> list[str]:
    """Write results.csv and results.parquet; notes on what could not be written."""
    table.to_csv(folder / "results.csv", index=False)
    try:
        table.to_parquet(folder / "results.parquet", index=False, engine="pyarrow")
    except ImportError:
        return ["results.parquet is not written: it needs pyarrow (pip install pyarrow)"]
    return []


def _follows(table: "pandas.DataFrame", axis: str, leader: str) -> bool:
    """Whether every value of ``leader`` fixes one of ``axis``."""
    return bool((table.groupby(leader, dropna=False)[axis].nunique(dropna=False) <= 1).all())


def _row(record: Record) -> dict[str, Any]:
    case, outcome = record.case, record.outcome
    fields = record.case_config()
    timing = fields.pop("timing")
    return {
        "key": record.key,
        "slug": record.slug,
        "backend": fields.pop("backend"),
        **fields,
        "d_model": case.d_model,
        **{f"timing_{name}": value for name, value in timing.items()},
        "status": outcome.status.value,
        "reason": outcome.reason,
        **outcome.metrics.model_dump(),
        "samples": len(outcome.samples_ms),
        **record.costs.model_dump(),
        "backend_chosen": outcome.backend_chosen,
        "gqa": outcome.gqa,
        "device_name": record.environment.device_name,
        "torch": record.environment.torch,
        "started_at": record.started_at,
    }


def _row_types() -> dict[str, str]:
    """Column -> pandas type, in the order of the columns."""
    text, whole, number = "string", "Int64", "Float64"
    counts = ("seq", "batch", "heads", "kv_heads", "head_dim", "layers", "ffn_dim", "vocab")
    return {
        **dict.fromkeys(("key", "slug", "backend", "model", "arch"), text),
        **dict.fromkeys(counts, whole),
        "dtype": text,
        "causal": "boolean",
        "device": text,
        **dict.fromkeys(("seed", "d_model", "timing_warmup", "timing_samples"), whole),
        "timing_max_seconds": number,
        **dict.fromkeys(("status", "reason"), text),
        **dict.fromkeys(
            ("latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "first_call_ms", "tokens_per_s"),
            number,
        ),
        **dict.fromkeys(
            ("peak_allocated_bytes", "peak_reserved_bytes", "baseline_allocated_bytes", "samples"), whole
        ),
        **dict.fromkeys(
            ("params", "weight_bytes", "useful_flops", "executed_flops", "min_bytes"), whole
        ),
        **dict.fromkeys(("backend_chosen", "gqa", "device_name", "torch", "started_at"), text),
    }

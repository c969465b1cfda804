"""Records as a table: one row a case, units in the column names, a missing number null.

Also which columns were swept, for a plot or a table may show only those and must never average over
one that nobody looks at.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.analyse.noise import TIMES, Noise, widened
from attnscale.analyse.utilisation import utilisation
from attnscale.analyse.where import CATEGORY_COLUMNS, PART_COLUMNS, evidence
from attnscale.record import Record, write_atomically

if TYPE_CHECKING:
    import pandas

NUMERIC_AXES = ("seq", "batch", "heads", "kv_heads", "head_dim", "layers", "ffn_dim", "vocab")

AXES = (
    "model",
    "arch",
    "seq",
    "batch",
    "heads",
    "head_dim",
    "kv_heads",
    "layers",
    "ffn_dim",
    "vocab",
    "dtype",
    "causal",
    "device",
    "seed",
    "timing_settle_seconds",
    "timing_precision",
    "timing_min_samples",
    "timing_max_seconds",
    "timing_flush_l2",
)
"""Every swept column but backend, which is the hue of every figure. Leaders before followers."""

_LEADERS: Mapping[str, tuple[str, ...]] = {
    "arch": ("model",),
    "heads": ("model",),
    "head_dim": ("model",),
    "kv_heads": ("model", "arch", "heads"),
    "layers": ("model",),
    "ffn_dim": ("model", "arch", "heads", "head_dim"),
    "vocab": ("model",),
}
"""The axes that a preset or a default derives from others. All other axes are always asked for: two
of them that happen to change together are two axes all the same."""


def frame(records: Sequence[Record], noise: Noise | None = None) -> "pandas.DataFrame":
    """One row a record, in the order given. Integers and floats are pandas' nullable types.

    ``latency_low_ms`` to ``latency_high_ms``, and so device and host, is what comparisons use: the
    interval of the run, widened by the noise between runs where that is known.
    """
    import pandas as pd

    rows = [_row(record, noise or Noise()) for record in records]
    types = _column_types()
    return pd.DataFrame(rows, columns=list(types), dtype=object).astype(types)


def swept_axes(table: "pandas.DataFrame") -> tuple[str, ...]:
    """The axes with more than one value, without those that merely follow others.

    With model presets swept, the shapes follow ``model``; with heads swept, kv_heads and ffn_dim
    follow ``heads``; with heads and head_dim swept, ffn_dim follows the two together.
    """
    kept: list[str] = []
    for axis in AXES:
        if table[axis].nunique(dropna=False) <= 1:
            continue
        leaders = [leader for leader in _LEADERS.get(axis, ()) if leader in kept]
        if not (leaders and _follows(table, axis, leaders)):
            kept.append(axis)
    return tuple(kept)


def fixed_axes(table: "pandas.DataFrame") -> dict[str, Any]:
    """The axes with one value only, and that value."""
    return {axis: table[axis].iloc[0] for axis in AXES if table[axis].nunique(dropna=False) == 1}


def backends(table: "pandas.DataFrame") -> list[str]:
    """Every backend asked for, in the order first measured."""
    return list(table["backend"].unique())


def write_tables(table: "pandas.DataFrame", folder: Path) -> list[str]:
    """Write results.csv and results.parquet; notes on what could not be written.

    A null is an empty field of the CSV. pandas reads a text such as "None" as null too, unless it is
    told ``keep_default_na=False, na_values=[""]``; the Parquet file needs no such care.
    """
    write_atomically(folder / "results.csv", table.to_csv(index=False, lineterminator="\n"))
    parquet = folder / "results.parquet"
    unfinished = folder / ".results.parquet.unfinished"
    try:
        table.to_parquet(unfinished, index=False, engine="pyarrow")
    except ImportError:
        parquet.unlink(missing_ok=True)  # of an earlier build: it would disagree with the CSV
        return ["results.parquet is not written: it needs pyarrow (pip install pyarrow)"]
    unfinished.replace(parquet)
    return []


def _follows(table: "pandas.DataFrame", axis: str, leaders: list[str]) -> bool:
    """Whether the values of ``leaders`` together fix that of ``axis``."""
    return bool((table.groupby(leaders, dropna=False)[axis].nunique(dropna=False) <= 1).all())


def _row(record: Record, noise: Noise) -> dict[str, Any]:
    case, outcome = record.case, record.outcome
    settling = outcome.settling
    fields = record.case_config()
    timing = fields.pop("timing")
    return {
        "key": record.key,
        "slug": record.slug,
        **fields,
        "d_model": case.d_model,
        **{f"timing_{name}": value for name, value in timing.items()},
        "status": outcome.status.value,
        "reason": outcome.reason,
        **outcome.metrics.model_dump(),
        **_intervals(record, noise),
        **utilisation(record),
        "samples": len(outcome.latency_samples_ms),
        "device_windows": len(outcome.device_windows),
        "device_timed_by": outcome.device_timed_by,
        "capture_refused": outcome.capture_refused,
        "settled": settling.settled if settling else None,
        "throttle": " ".join(sorted({name for one in outcome.device_windows for name in one.throttle})),
        **record.costs.model_dump(),
        "backend_chosen": outcome.backend_chosen,
        "backend_ran": outcome.backend_ran,
        **evidence(record),
        "gqa": outcome.gqa,
        "device_name": record.environment.device_name,
        "torch": record.environment.torch,
        "started_at": record.started_at,
    }


def _intervals(record: Record, noise: Noise) -> dict[str, float | None]:
    metrics = record.outcome.metrics.model_dump()
    found: dict[str, float | None] = {}
    for time in TIMES:
        value, low, high = (metrics[f"{time}_{name}ms"] for name in ("", "ci_low_", "ci_high_"))
        ends = widened(value, (low, high), noise.half_width(record, time))
        found |= zip((f"{time}_low_ms", f"{time}_high_ms"), ends, strict=True)
    return found


def _column_types() -> dict[str, str]:
    """Column -> pandas type, in the order of the columns."""
    by_type = (
        ("string", "key slug backend model arch"),
        ("Int64", "seq batch heads kv_heads head_dim d_model layers ffn_dim vocab"),
        ("string", "dtype"),
        ("boolean", "causal"),
        ("string", "device"),
        ("Int64", "seed"),
        ("Float64", "timing_settle_seconds timing_precision"),
        ("Int64", "timing_min_samples"),
        ("Float64", "timing_max_seconds"),
        ("boolean", "timing_flush_l2"),
        ("string", "status reason"),
        ("Float64", "latency_ms latency_ci_low_ms latency_ci_high_ms latency_low_ms latency_high_ms"),
        ("Float64", "device_ms device_ci_low_ms device_ci_high_ms device_low_ms device_high_ms"),
        ("Float64", "host_ms host_ci_low_ms host_ci_high_ms host_low_ms host_high_ms"),
        ("boolean", "launch_bound"),
        ("Float64", "host_over_device first_call_ms tokens_per_s rel_error forward_rel_error"),
        ("Int64", "weights_allocated_bytes activations_peak_bytes attention_peak_bytes"),
        ("Int64", "peak_allocated_bytes peak_reserved_bytes baseline_allocated_bytes"),
        ("Float64", "mfu hfu mamfu mamfu_executed mbu matmul_flops_per_s copy_bytes_per_s"),
        ("Float64", "guess_device_ms"),
        ("Float64", "sm_clock_mhz power_w temperature_c"),
        ("boolean", "settled"),
        ("string", "throttle device_timed_by capture_refused"),
        ("Int64", "samples device_windows"),
        ("Float64", "params weight_bytes useful_flops executed_flops min_bytes"),  # may pass 2**63
        ("string", "backend_chosen backend_ran"),
        ("Int64", "kernels memcpys"),
        ("Float64", "kernels_a_layer kernel_ms attention_share idle_us"),
        ("Float64", " ".join((*CATEGORY_COLUMNS, *PART_COLUMNS))),
        ("string", "gqa device_name torch started_at"),
    )
    return {name: kind for kind, names in by_type for name in names.split()}

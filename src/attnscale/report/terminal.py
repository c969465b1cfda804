"""What a sweep or a rebuilt report says in the terminal: a table of 80 columns, plain when piped."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.record import Record, Skipped, Status, record_path

if TYPE_CHECKING:
    import pandas
    from rich.console import Console

_GIB = 2**30


def show(
    records: Sequence[Record], table: "pandas.DataFrame", skipped: Sequence[Skipped], folder: Path
) -> None:
    """The results of a sweep on stdout: one case in full, several as a table, then what failed."""
    from rich.console import Console

    console = Console(highlight=False)
    if len(records) == 1:
        console.print(_one_case(records[0]))
    elif records:
        console.print(_table(table))
    show_unexpected(records, skipped, folder, console)


def show_unexpected(
    records: Sequence[Record], skipped: Sequence[Skipped], folder: Path, console: "Console"
) -> None:
    """A line for each case that is not ok, with its reason, and for each file that can't be read."""
    for record in records:
        outcome = record.outcome
        if outcome.status is Status.OK:
            continue
        line = f"{outcome.status}: {record.slug}: {outcome.reason}"
        if not outcome.status.expected:
            line += f" (more in {record_path(folder, record.case)})"
        console.print(line, soft_wrap=True, markup=False)
    for entry in skipped:
        console.print(f"not read: {entry.path}: {entry.why}", soft_wrap=True, markup=False)


def _table(table: "pandas.DataFrame") -> Any:
    from rich.table import Table

    from attnscale.analyse.frame import swept_axes

    axes = list(swept_axes(table))
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for axis in ["backend", *axes]:
        shown.add_column(axis, justify="left" if axis == "backend" else "right", overflow="fold")
    has_memory = bool(table["peak_allocated_bytes"].notna().any())
    headers = ["latency ms", "95% interval", "tokens/s"] + ["peak GiB"] * has_memory + ["outcome"]
    for header in headers:
        shown.add_column(header, justify="left" if header == "outcome" else "right", no_wrap=True)
    for _, row in table.iterrows():
        cells = [str(row[axis]) for axis in ["backend", *axes]]
        cells += [number(row["latency_ms"]), interval(row), number(row["tokens_per_s"])]
        if has_memory:
            cells.append(number(row["peak_allocated_bytes"], unit=_GIB))
        shown.add_row(*cells, str(row["status"]))
    return shown


def _one_case(record: Record) -> Any:
    """Everything that one case gave, a line a value."""
    from rich.table import Table

    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    outcome, costs = record.outcome, record.costs
    lines: dict[str, object] = {
        "case": record.slug,
        "device": f"{record.environment.device_name}, torch {record.environment.torch}",
        "outcome": outcome.status.value,
    }
    if outcome.backend_chosen and outcome.backend_chosen != record.case.backend:
        lines["PyTorch chose"] = outcome.backend_chosen
    for name, value in outcome.metrics.model_dump().items():
        shown_value = number(value) if value is not None else f"null: {outcome.nulls.get(name)}"
        if outcome.status is Status.OK:
            lines[name] = shown_value
    lines["samples"] = len(outcome.samples_ms)
    lines["params"] = number(costs.params)
    lines["useful_flops"] = number(costs.useful_flops)
    lines["executed_flops"] = number(costs.executed_flops)
    for name, value in lines.items():
        shown.add_row(name, str(value))
    return shown


def number(value: Any, unit: int = 1) -> str:
    """Four figures, plain digits, thousands apart: 0.01234, 1.234, 1,234; a dash for null."""
    import pandas as pd

    if value is None or pd.isna(value):
        return "-"
    scaled = float(value) / unit
    if abs(scaled) >= 1000 or scaled == int(scaled):
        return f"{scaled:,.0f}"
    return f"{scaled:.4g}"


def interval(row: Any) -> str:
    """low - high of the latency's 95% interval."""
    import pandas as pd

    low, high = row["latency_ci_low_ms"], row["latency_ci_high_ms"]
    if pd.isna(low) or pd.isna(high):
        return "-"
    return f"{number(low)} - {number(high)}"

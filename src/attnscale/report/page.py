"""report.html: one file, no network, everything that a reader needs to trust or doubt a number."""

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.analyse.answer import fastest
from attnscale.analyse.found import found
from attnscale.analyse.frame import AXES, fixed_axes, swept_axes
from attnscale.analyse.guesses import Mismatch
from attnscale.record import Environment, Record, Skipped, Status
from attnscale.report import predicted
from attnscale.report.numbers import GIB, interval, number
from attnscale.report.plots import Figure

if TYPE_CHECKING:
    import pandas

_MEASURED: dict[str, tuple[str, float]] = {
    "latency_ms": ("latency (ms)", 1),
    "device_ms": ("device (ms)", 1),
    "host_ms": ("host (ms)", 1),
    "host_over_device": ("host / device", 1),
    "kernels": ("kernels", 1),
    "kernels_a_layer": ("kernels a layer", 1),
    "memcpys": ("memcpys", 1),
    "kernel_ms": ("kernels' time (ms)", 1),
    "idle_us": ("idle when profiled (µs)", 1),
    "attention_share": ("attention's share (%)", 0.01),
    "rel_error": ("attention error (%)", 0.01),
    "forward_rel_error": ("forward error (%)", 0.01),
    "mfu": ("MFU (%)", 0.01),
    "hfu": ("HFU (%)", 0.01),
    "mamfu": ("MAMFU (%)", 0.01),
    "mamfu_executed": ("MAMFU executed (%)", 0.01),
    "mbu": ("bandwidth (%)", 0.01),
    "first_call_ms": ("first call (ms)", 1),
    "tokens_per_s": ("tokens/s", 1),
    "weights_allocated_bytes": ("weights (GiB)", GIB),
    "activations_peak_bytes": ("activations (GiB)", GIB),
    "attention_peak_bytes": ("one attention (GiB)", GIB),
    "peak_allocated_bytes": ("peak allocated (GiB)", GIB),
    "peak_reserved_bytes": ("peak reserved (GiB)", GIB),
    "sm_clock_mhz": ("SM clock (MHz)", 1),
    "power_w": ("power (W)", 1),
    "temperature_c": ("temperature (°C)", 1),
    "params": ("parameters", 1),
    "useful_flops": ("useful GFLOP", 1e9),
    "executed_flops": ("executed GFLOP", 1e9),
    "min_bytes": ("least traffic (GiB)", GIB),
}
"""Column -> its header on the page and what its values are divided by."""


_MOST_GUESSES = 5


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    numeric: bool
    """Sorted by value instead of by letters."""
    cells: Sequence[tuple[str, str]]
    """For each row the text and the key that it is sorted by, empty for null."""


def render(
    records: Sequence[Record],
    table: "pandas.DataFrame",
    skipped: Sequence[Skipped],
    figures: Sequence[Figure],
    notes: Sequence[str],
    commands: Sequence[str],
    guesses: Sequence[Mismatch],
    deep: predicted.Found,
    sweep_id: str,
) -> str:
    """The page as HTML; every text from a record is escaped."""
    import jinja2

    template = files("attnscale.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(
        sweep_id=sweep_id,
        commands=commands,
        fixed={name: str(value) for name, value in fixed_axes(table).items()},
        answers=fastest(table),
        environments=_environments(records),
        columns=_columns(table),
        figures=[{"alt": figure.alt, "src": _inline(figure.path)} for figure in figures],
        outcomes=table["status"].value_counts().to_dict(),
        devices=_distinct(record.environment.device_name for record in records),
        number=number,
        unexpected=[record for record in records if record.outcome.status is not Status.OK],
        nulls=_why_null(records),
        found=found(records),
        deep=[(series, made, predicted.said(series, made)) for series, made in deep],
        cells=predicted.cells,
        ties=predicted.ties(deep),
        guesses=[guess for guess in guesses if guess.factor != 1][:_MOST_GUESSES],
        skipped=skipped,
        notes=notes,
    )


def _columns(table: "pandas.DataFrame") -> list[_Column]:
    """The columns of the page's table, without those that are null in every row."""
    axes = [_column(table, axis, axis) for axis in ("backend", *swept_axes(table))]
    measured = [_column(table, name, *header) for name, header in _MEASURED.items()]
    latency, device, host, *others = measured
    columns = [*axes, _column(table, "status", "outcome")]
    for column, time in ((latency, "latency"), (device, "device"), (host, "host")):
        columns += [column, _interval(table, time)]
    columns += [_column(table, "launch_bound", "launch-bound"), *others]
    columns += [
        _column(table, "device_timed_by", "device timed by"),
        _column(table, "settled", "settled"),
    ]
    columns += [_column(table, "throttle", "clock held by")]
    texts = {"backend_ran": "ran", "backend_chosen": "PyTorch chose", "gqa": "GQA"}
    columns += [_column(table, name, header) for name, header in texts.items()]
    return [column for column in columns if any(key for _, key in column.cells)]


def _interval(table: "pandas.DataFrame", time: str) -> _Column:
    ends = zip(table[f"{time}_low_ms"], table[f"{time}_high_ms"], strict=True)
    cells = [(interval(low, high), _sort_key(low)) for low, high in ends]
    return _Column("95% interval (ms)", numeric=True, cells=cells)


def _column(table: "pandas.DataFrame", name: str, header: str, unit: float = 1) -> _Column:
    column = table[name]
    if column.dtype not in ("Int64", "Float64"):
        texts = [
            "" if missing else str(value) for value, missing in zip(column, column.isna(), strict=True)
        ]
        return _Column(header, numeric=False, cells=[(text or "-", text) for text in texts])
    # The value of an axis is a name as much as a number: 1024, as in the command.
    show = str if name in AXES else functools.partial(number, unit=unit)
    return _Column(header, numeric=True, cells=[(show(value), _sort_key(value)) for value in column])


def _sort_key(value: Any) -> str:
    import pandas as pd

    return "" if pd.isna(value) else repr(float(value))


def _environments(records: Sequence[Record]) -> list[dict[str, str]]:
    """Each distinct environment, as lines of name and text; the command is shown apart."""
    counted: list[tuple[dict[str, str], list[str]]] = []
    for record in records:
        lines = _environment_lines(record.environment)
        slugs = next((slugs for known, slugs in counted if known == lines), None)
        if slugs is None:
            counted.append((lines, [record.slug]))
        else:
            slugs.append(record.slug)
    if len(counted) == 1:
        return [counted[0][0]]
    return [{"cases": f"{len(slugs)}: {', '.join(slugs)}"} | lines for lines, slugs in counted]


def _environment_lines(environment: Environment) -> dict[str, str]:
    lines: dict[str, str] = {}
    for name, value in environment.model_dump(exclude={"nulls", "command"}).items():
        if value is None:
            lines[name] = f"null: {environment.nulls.get(name, 'not set')}"
        elif isinstance(value, dict):
            lines[name] = ", ".join(f"{key} {part}" for key, part in value.items())
        else:
            lines[name] = str(value)
    return lines


def _why_null(records: Sequence[Record]) -> dict[str, str]:
    """Metric -> the reasons for its nulls in cases that are ok."""
    reasons: dict[str, list[str]] = {}
    for record in records:
        for name, why in record.outcome.nulls.items():
            if why not in reasons.setdefault(name, []):
                reasons[name].append(why)
    return {name: "; ".join(whys) for name, whys in reasons.items()}


def _distinct(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _inline(path: Path) -> str:
    """The SVG as a data address, which keeps its styles and ids apart from the page's."""
    encoded = base64.b64encode(path.with_suffix(".svg").read_bytes()).decode("ascii")
    return f"data:image/svg+xml;base64,{encoded}"

"""report.html: one file, no network, everything that a reader needs to trust or doubt a number."""

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.analyse.answer import fastest
from attnscale.analyse.frame import fixed_axes, swept_axes
from attnscale.record import Environment, Record, Skipped, Status
from attnscale.report.plots import Figure
from attnscale.report.terminal import interval, number

if TYPE_CHECKING:
    import pandas

_GIB = 2**30


def render(
    records: Sequence[Record],
    table: "pandas.DataFrame",
    skipped: Sequence[Skipped],
    figures: Sequence[Figure],
    notes: Sequence[str],
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
        commands=_distinct(record.environment.command for record in records),
        fixed={name: str(value) for name, value in fixed_axes(table).items()},
        answers=fastest(table),
        environments=_environments(records),
        columns=_columns(table),
        figures=[{"alt": figure.alt, "src": _inline(figure.path)} for figure in figures],
        outcomes=table["status"].value_counts().to_dict(),
        unexpected=[record for record in records if record.outcome.status is not Status.OK],
        nulls=_why_null(records),
        skipped=skipped,
        notes=notes,
    )


def _columns(table: "pandas.DataFrame") -> list[dict[str, Any]]:
    """The columns of the page's table: header, and for each row the text and the value to sort by."""
    columns = [
        {"header": name, "numeric": table[name].dtype != "string", "cells": _cells(table[name])}
        for name in ("backend", *swept_axes(table))
    ]
    columns.append({"header": "outcome", "numeric": False, "cells": _cells(table["status"])})
    measured = [
        ("latency_ms", "latency (ms)", 1),
        ("first_call_ms", "first call (ms)", 1),
        ("tokens_per_s", "tokens/s", 1),
        ("peak_allocated_bytes", "peak allocated (GiB)", _GIB),
        ("peak_reserved_bytes", "peak reserved (GiB)", _GIB),
        ("params", "parameters", 1),
        ("useful_flops", "useful GFLOP", 10**9),
        ("executed_flops", "executed GFLOP", 10**9),
        ("min_bytes", "least traffic (GiB)", _GIB),
    ]
    for name, header, unit in measured:
        if table[name].notna().any():
            columns.append({"header": header, "numeric": True, "cells": _cells(table[name], unit)})
            if name == "latency_ms":
                cells = [(interval(row), row["latency_ci_low_ms"]) for _, row in table.iterrows()]
                columns.append(
                    {
                        "header": "95% interval",
                        "numeric": True,
                        "cells": [(t, _sortable(v)) for t, v in cells],
                    }
                )
    for name, header in (("backend_chosen", "PyTorch chose"), ("gqa", "GQA")):
        columns.append({"header": header, "numeric": False, "cells": _cells(table[name])})
    return columns


def _cells(column: "pandas.Series[Any]", unit: int = 1) -> list[tuple[str, str]]:
    if column.dtype == "string" or column.dtype == "boolean":
        texts = [
            "-" if missing else str(value) for value, missing in zip(column, column.isna(), strict=True)
        ]
        return [(text, "" if text == "-" else text) for text in texts]
    plain = column.name in (
        "seq",
        "batch",
        "heads",
        "kv_heads",
        "head_dim",
        "layers",
        "ffn_dim",
        "vocab",
    )
    return [
        (str(value) if plain and unit == 1 else number(value, unit), _sortable(value))
        for value in column
    ]


def _sortable(value: Any) -> str:
    import pandas as pd

    return "" if pd.isna(value) else repr(float(value))


def _environments(records: Sequence[Record]) -> list[dict[str, str]]:
    """Each distinct environment, as lines of name and text; the command is shown apart."""
    shown = []
    for environment in _distinct(record.environment for record in records):
        lines = _environment_lines(environment)
        if lines not in shown:
            shown.append(lines)
    return shown


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

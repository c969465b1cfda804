"""Which backend was fastest at each shape, and whether the intervals allow to say so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscale.analyse.frame import swept_axes

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The ranking at one shape."""

    shape: str
    """Swept axes and their values; empty when only the backend was swept."""
    fastest: str | None = None
    """None when no case of this shape is ok."""
    latency_ms: float | None = None
    """Of the fastest."""
    ties: Sequence[str] = ()
    """Backends whose 95% interval overlaps that of the fastest: too close to call."""
    runner_up: str | None = None
    """The fastest backend that is not a tie."""
    ratio: float | None = None
    """Latency of the runner-up over that of the fastest."""
    compared: int = 0
    """Cases that ended ok."""
    has_intervals: bool = True
    """False when a case had fewer than six samples: then there is a ranking and no certainty."""
    without: Mapping[str, str]
    """Backend -> status of the cases that are not ok and so not compared."""


def fastest(table: "pandas.DataFrame") -> list[Answer]:
    """One answer a shape, over the cases that are ok."""
    axes = list(swept_axes(table))
    if not axes:
        return [_answer("", table)]
    return [
        _answer(" · ".join(f"{axis} = {value}" for axis, value in zip(axes, values, strict=True)), rows)
        for values, rows in table.groupby(axes, dropna=False, sort=True)
    ]


def _answer(shape: str, rows: "pandas.DataFrame") -> Answer:
    is_ok = (rows["status"] == "ok") & rows["latency_ms"].notna()
    without = {str(row["backend"]): str(row["status"]) for _, row in rows[~is_ok].iterrows()}
    ok = rows[is_ok].sort_values("latency_ms", kind="stable")
    if ok.empty:
        return Answer(shape=shape, without=without)
    best, rest = ok.iloc[0], ok.iloc[1:]
    ends = ok[["latency_ci_low_ms", "latency_ci_high_ms"]]
    has_intervals = bool(ends.notna().all(axis=None))
    slower = rest["latency_ms"] > best["latency_ms"]
    if has_intervals:
        slower = rest["latency_ci_low_ms"] > best["latency_ci_high_ms"]
    slower = slower.astype(bool)
    behind = rest[slower]
    return Answer(
        shape=shape,
        fastest=str(best["backend"]),
        latency_ms=float(best["latency_ms"]),
        ties=[str(name) for name in rest[~slower]["backend"]],
        runner_up=None if behind.empty else str(behind["backend"].iloc[0]),
        ratio=None if behind.empty else float(behind["latency_ms"].iloc[0] / best["latency_ms"]),
        compared=len(ok),
        has_intervals=has_intervals,
        without=without,
    )

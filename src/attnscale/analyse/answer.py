"""Which backend was fastest at each shape, and whether the intervals allow to say so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscale.analyse.frame import swept_axes

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Answer:
    """The ranking at one shape."""

    shape: str
    """Swept axes and their values; empty when only the backend was swept."""
    fastest: str | None
    """None when no case of this shape is ok."""
    latency_ms: float | None
    ties: Sequence[str]
    """Backends whose 95% interval overlaps that of the fastest: too close to call."""
    runner_up: str | None
    """The fastest backend that is not a tie."""
    ratio: float | None
    """Latency of the runner-up over that of the fastest."""


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
    ok = rows[(rows["status"] == "ok") & rows["latency_ms"].notna()].sort_values("latency_ms")
    if ok.empty:
        return Answer(shape, None, None, (), None, None)
    best = ok.iloc[0]
    rest = ok.iloc[1:]
    # Without both intervals nothing can be told apart.
    overlaps = ~(rest["latency_ci_low_ms"] > best["latency_ci_high_ms"]).fillna(value=False).astype(bool)
    ties = [str(name) for name in rest[overlaps]["backend"]]
    slower = rest[~overlaps]
    runner_up = None if slower.empty else str(slower.iloc[0]["backend"])
    ratio = None if slower.empty else float(slower.iloc[0]["latency_ms"] / best["latency_ms"])
    return Answer(shape, str(best["backend"]), float(best["latency_ms"]), ties, runner_up, ratio)

"""Which backend was fastest at each shape, and whether the noise allows to say so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscale.analyse.frame import swept_axes
from attnscale.analyse.noise import difference_seen

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
    """Backends between which and the fastest no difference was seen."""
    runner_up: str | None = None
    """The fastest backend that is not a tie."""
    ratio: float | None = None
    """Latency of the runner-up over that of the fastest."""
    fastest_on_device: str | None = None
    """By device_ms; None where a case has none. Another than ``fastest`` where launching holds it up."""
    launch_bound: Sequence[str] = ()
    """Backends whose forward waits for its launches at this shape."""
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
    ends = ok[["latency_low_ms", "latency_high_ms"]]
    has_intervals = bool(ends.notna().all(axis=None))
    seen = [not has_intervals or _slower(row, best) for _, row in rest.iterrows()]
    names = [str(name) for name in rest["backend"]]
    behind = rest.loc[rest.index[seen]]
    on_device = ok.sort_values("device_ms", kind="stable") if ok["device_ms"].notna().all() else None
    return Answer(
        shape=shape,
        fastest=str(best["backend"]),
        latency_ms=float(best["latency_ms"]),
        ties=[name for name, apart in zip(names, seen, strict=True) if not apart],
        runner_up=None if behind.empty else str(behind["backend"].iloc[0]),
        ratio=None if behind.empty else float(behind["latency_ms"].iloc[0] / best["latency_ms"]),
        fastest_on_device=None if on_device is None else str(on_device["backend"].iloc[0]),
        launch_bound=[str(name) for name in ok[ok["launch_bound"].fillna(False)]["backend"]],
        compared=len(ok),
        has_intervals=has_intervals,
        without=without,
    )


def _slower(row: "pandas.Series[Any]", best: "pandas.Series[Any]") -> bool:
    half_widths = (_half_width(row), _half_width(best))
    return difference_seen(row["latency_ms"] / best["latency_ms"], half_widths)


def _half_width(row: "pandas.Series[Any]") -> float:
    return math.log(row["latency_high_ms"] / row["latency_low_ms"]) / 2

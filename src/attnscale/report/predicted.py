"""Predictions of deeper models in words: for the terminal, as JSON, and as rows of the page."""

import dataclasses
import itertools
import json
from collections.abc import Sequence

from attnscale.analyse.cards import in_words
from attnscale.analyse.depth import Prediction, Series, TooFewDepths, all_series, predict
from attnscale.analyse.noise import Noise
from attnscale.record import Record
from attnscale.report.numbers import GIB, number
from attnscale.report.plots.depth import Course, DepthPlan

Found = Sequence[tuple[Series, Sequence[Prediction]]]

_SHOWN = {
    "latency_ms": ("latency, ms", 1.0),
    "device_ms": ("device, ms", 1.0),
    "host_ms": ("host, ms", 1.0),
    "tokens_per_s": ("tokens/s", 1.0),
    "energy_j": ("energy, J", 1.0),
    "peak_allocated_bytes": ("peak, GiB", GIB),
    "weights_allocated_bytes": ("weights, GiB", GIB),
    "activations_peak_bytes": ("activations, GiB", GIB),
    "first_call_ms": ("first call, ms", 1.0),
}


def every_series(
    records: Sequence[Record], layers: int, noise: Noise
) -> tuple[list[tuple[Series, list[Prediction]]], list[str]]:
    """What can be predicted, and a line for each series that can't be."""
    found, refused = [], []
    for series in all_series(records):
        try:
            found.append((series, predict(series, layers, noise)))
        except TooFewDepths as error:
            refused.append(str(error))
    return found, refused


def figure(records: Sequence[Record], layers: int, noise: Noise) -> DepthPlan | None:
    """Latency over depth for all that can be predicted; None when nothing can."""
    panels: dict[str, list[Course]] = {}
    for series, _ in every_series(records, layers, noise)[0]:
        deepest = max(r.case.layers for r in series.records if r.case.layers < layers)
        steps = range(deepest, layers, max(1, (layers - deepest) // 8))
        # One deeper than the ladder at least, so that all of the ladder is below it.
        depths = sorted({max(step, deepest + 1) for step in steps} | {layers})
        at = [predict(series, depth, noise) for depth in depths]
        latency = [one for made in at for one in made if one.quantity == "latency_ms"]
        shape = series.name.replace(f"-{series.backend}-", "-", 1)
        panels.setdefault(shape, []).append(Course(series=series, predicted=latency))
    if not panels:
        return None
    devices = ", ".join(dict.fromkeys(r.environment.device_name for r in records))
    shapes = "" if len(panels) > 1 else f", {next(iter(panels))}"
    return DepthPlan(
        panels=panels,
        title=f"Latency by depth on {devices}{shapes}, to {layers} layers",
        caption=["marks: measured; lines and bands: predicted, 95%"],
    )


def as_json(found: Found, refused: Sequence[str]) -> str:
    """Every field of every prediction."""
    made = [
        {
            "series": series.name,
            "backend": series.backend,
            "dropped": series.dropped,
            "predictions": [
                dataclasses.asdict(one) | {"formula": one.formula, "error": one.error} for one in made
            ],
        }
        for series, made in found
    ]
    return json.dumps({"predicted": made, "refused": list(refused)}, indent=1)


def show(found: Found, refused: Sequence[str]) -> None:
    """A table a series, the ties, and what could not be predicted."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for series, made in found:
        table = Table(box=None, pad_edge=False, title_justify="left")
        table.title = f"{series.name}, {made[0].layers} layers from {_depths(made[0])}"
        for header in ("", "predicted", "95% interval", "held out", "measured", "error"):
            table.add_column(header, justify="left" if not header else "right")
        for one in made:
            table.add_row(*cells(one))
        console.print(table)
        for line in said(series, made):
            print(line)
        print()
    for line in ties(found):
        print(line)
    for line in refused:
        print(f"not predicted: {line}")


def cells(one: Prediction) -> list[str]:
    """Name, value, interval, held-out error, measured, error."""
    name, unit = _SHOWN[one.quantity]
    return [
        name,
        number(one.value, unit),
        f"{number(one.low, unit)} - {number(one.high, unit)}",
        _signed(one.held_out_error),
        number(one.measured, unit),
        _signed(one.error),
    ]


def said(series: Series, made: Sequence[Prediction]) -> list[str]:
    """Formulas of the times, cards, notes, and what was dropped."""
    times = [one for one in made if one.quantity in ("device_ms", "host_ms")] or list(made[:1])
    lines = [f"{one.quantity} = {one.formula}" for one in times]
    lines += in_words(series, made)
    lines += list(dict.fromkeys(f"note: {one}" for each in made for one in each.notes))
    if series.dropped:
        counted = ", ".join(f"{count} {status}" for status, count in series.dropped.items())
        lines.append(f"dropped: {counted}")
    return lines


def ties(found: Found) -> list[str]:
    """Backends of one shape, by predicted latency: which are apart, and which are a tie."""
    shapes: dict[str, list[tuple[str, Prediction]]] = {}
    for series, made in found:
        latency = next((one for one in made if one.quantity == "latency_ms"), None)
        if latency:
            shape = series.name.replace(f"-{series.backend}-", "-", 1)
            shapes.setdefault(shape, []).append((series.backend, latency))
    lines = []
    for shape, several in shapes.items():
        ranked = sorted(several, key=lambda one: one[1].value)
        if len(ranked) > 1:
            best = ranked[0]
            tied = [name for name, one in ranked[1:] if one.low <= best[1].high]
            behind = list(itertools.islice(((n, o) for n, o in ranked[1:] if n not in tied), 1))
            lead = f"a tie of {', '.join([best[0], *tied])}" if tied else f"{best[0]} is fastest"
            then = "".join(f"; {n} takes {o.value / best[1].value:.2f} times as long" for n, o in behind)
            seconds = f"{number(best[1].value)} s a thousand forwards"  # as many as ms of one
            lines.append(f"{shape}, {best[1].layers} layers: {lead}, {seconds}{then}")
    return lines


def _depths(one: Prediction) -> str:
    return ", ".join(map(str, one.depths))


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{error:+.2%}"

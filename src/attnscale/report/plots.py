"""Scaling curves and bars, as PNG and SVG.

One figure for each swept numeric axis and metric, one line a backend. Nothing is averaged: an axis
that is neither x nor the line is a facet. Cases without a number are marked above the panel at their
place on the axis and counted under the figure. A backend has one colour, marker and dash everywhere.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnscale.analyse.frame import NUMERIC_AXES, backends, fixed_axes, swept_axes
from attnscale.case import BACKENDS

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_MARKERS = dict(zip(BACKENDS, "osD^vPh", strict=True))
_DASHES: dict[str, Any] = dict(
    zip(BACKENDS, ["", (4, 1.5), (1, 1), (3, 1, 1, 1), (5, 1, 1, 1, 1, 1), (2, 2), (6, 2)], strict=True)
)
_PANELS_A_FIGURE = 12
_TICKS_AT_MOST = 12
_MARK_POINTS = 10.5  # height of one row of marks above a panel
_RC: dict[Any, Any] = {
    "svg.hashsalt": "attnscale",  # the same bytes at every build
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
}
_UNITS = {"seq": "tokens", "batch": "sequences", "head_dim": "elements", "ffn_dim": "elements"}


@dataclass(frozen=True, slots=True)
class Metric:
    """A column that is drawn."""

    column: str
    label: str
    slug: str
    unit: float = 1.0
    interval: tuple[str, str] | None = None


METRICS = (
    Metric(
        "latency_ms", "latency (ms)", "latency", interval=("latency_ci_low_ms", "latency_ci_high_ms")
    ),
    Metric("tokens_per_s", "throughput (tokens/s)", "tokens"),
    Metric("peak_allocated_bytes", "peak memory allocated (GiB)", "memory", unit=2.0**30),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure: ``path`` with the endings .png and .svg, and what it shows in words."""

    path: Path
    alt: str


def draw_all(table: "pandas.DataFrame", folder: Path) -> list[Figure]:
    """Every figure of a sweep into ``folder``; a metric that no case has gets none."""
    figures: list[Figure] = []
    swept = swept_axes(table)
    x_axes: list[str | None] = [axis for axis in swept if axis in NUMERIC_AXES]
    for metric in METRICS:
        if table[metric.column].notna().any():
            for x in x_axes or [None]:
                figures += _draw(table, metric, x, [axis for axis in swept if axis != x], folder)
    return figures


def _draw(
    table: "pandas.DataFrame", metric: Metric, x: str | None, facets: Sequence[str], folder: Path
) -> Iterator[Figure]:
    """One figure, or numbered ones when there are more facets than one page can hold."""
    panels = _panels(table, facets)
    chunks = [panels[i : i + _PANELS_A_FIGURE] for i in range(0, len(panels), _PANELS_A_FIGURE)]
    for number, chunk in enumerate(chunks, start=1):
        suffix = f"_{number}" if len(chunks) > 1 else ""
        path = folder / f"{metric.slug}_by_{x or 'backend'}{suffix}"
        yield _draw_figure(table, metric, x, chunk, path)


def _panels(table: "pandas.DataFrame", facets: Sequence[str]) -> list[tuple[str, "pandas.DataFrame"]]:
    """A panel for every combination of the facets: its title and its rows."""
    if not facets:
        return [("", table)]
    panels = []
    for values, rows in table.groupby(list(facets), dropna=False, sort=True):
        title = " · ".join(f"{name} = {value}" for name, value in zip(facets, values, strict=True))
        panels.append((title, rows))
    return panels


def _draw_figure(
    table: "pandas.DataFrame",
    metric: Metric,
    x: str | None,
    panels: Sequence[tuple[str, "pandas.DataFrame"]],
    path: Path,
) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    names = backends(table)
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    lines = math.ceil(len(panels) / columns)
    panel_height = 3.3 if x else max(1.4, 0.42 * len(names) + 0.9)
    with matplotlib.rc_context(_RC):
        width = max(6.4, 3.9 * columns) + (1.4 if x else 0)
        canvas = Canvas(figsize=(width, panel_height * lines + 1.1), layout="constrained")
        axes = canvas.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        flat = list(axes.flat)
        for ax, (title, rows) in zip(flat, panels, strict=False):
            if x is None:
                _bars(ax, rows, metric, names)
            else:
                _lines(ax, rows, metric, x, names)
            _panel_title(ax, title, rows, x, metric)
        for ax in flat[len(panels) :]:
            ax.set_visible(False)
        if x is not None:
            _y_scale(flat[0], [value for _, rows in panels for value in rows[metric.column].dropna()])
        what = f"{metric.label.partition(' (')[0]} by {x or 'backend'}"
        missing = _not_drawn(table, metric)
        _finish(canvas, table, metric, x, names, what, missing)
        for ending, extra in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
            canvas.savefig(path.with_suffix(ending), **extra)
    drawn = int(table[metric.column].notna().sum())
    return Figure(path, f"{what}: {drawn} cases of {', '.join(names)}. {missing}".strip())


def _lines(ax: "Axes", rows: "pandas.DataFrame", metric: Metric, x: str, names: Sequence[str]) -> None:
    import seaborn

    known = _numbers(rows, metric, [x])
    seaborn.lineplot(
        data=known,
        x=x,
        y=metric.column,
        hue="backend",
        style="backend",
        hue_order=names,
        style_order=names,
        palette=_palette(),
        markers=_MARKERS,
        dashes=_DASHES,
        estimator=None,
        errorbar=None,
        legend=False,
        ax=ax,
    )
    if metric.interval:
        for name, one in known.groupby("backend"):
            low, high = (one[end] for end in metric.interval)
            ax.vlines(one[x], low, high, color=_palette()[str(name)], linewidth=1.2, alpha=0.8)
    values = sorted({int(value) for value in rows[x]})
    _x_ticks(ax, values)
    _mark_missing(ax, rows, metric, x, names)


def _x_ticks(ax: "Axes", values: Sequence[int]) -> None:
    """Ticks at swept values only, written in plain digits."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ax.set_xscale("log", base=2)
    step = math.ceil(len(values) / _TICKS_AT_MOST)
    shown = values[::step]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(shown, [str(value) for value in shown], rotation=45 if len(shown) > 8 else 0)
    ax.set_xlim(values[0] / 1.19, values[-1] * 1.19)


def _y_scale(ax: "Axes", values: Sequence[float]) -> None:
    """Logarithmic over a factor of four, else linear from zero; labels in plain digits.

    ``values`` are those of all panels, which share their axis.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    if values and min(values) > 0 and max(values) / min(values) > 4:
        ax.set_yscale("log")
        wide = max(values) / min(values) > 1000
        ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))


def _mark_missing(
    ax: "Axes", rows: "pandas.DataFrame", metric: Metric, x: str, names: Sequence[str]
) -> None:
    """A cross above the panel for each case without a number, a row a backend, its status in words."""
    missing = rows[rows[metric.column].isna()]
    for height, name in enumerate(_missing_backends(missing, names)):
        for _, row in missing[missing["backend"] == name].iterrows():
            ax.annotate(
                f"× {row['status']}",
                xy=(float(row[x]), 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 4 + _MARK_POINTS * height),
                textcoords="offset points",
                ha="center",
                fontsize=7.5,
                color=_palette()[name],
                annotation_clip=False,
            )


def _bars(ax: "Axes", rows: "pandas.DataFrame", metric: Metric, names: Sequence[str]) -> None:
    """A bar a backend from zero, its value beside it; one without a number has its status there."""
    import seaborn

    known = _numbers(rows, metric, [])
    seaborn.barplot(
        data=known,
        x=metric.column,
        y="backend",
        order=names,
        hue="backend",
        hue_order=names,
        palette=_palette(),
        errorbar=None,
        legend=False,
        ax=ax,
    )
    rows_by_name = {str(row["backend"]): row for _, row in known.iterrows()}
    states = {str(row["backend"]): str(row["status"]) for _, row in rows.iterrows()}
    for place, name in enumerate(names):
        text, end = states.get(name, "not asked for"), 0.0
        if name in rows_by_name:
            row = rows_by_name[name]
            end = float(row[metric.column])
            text = _plain(end)
            if metric.interval and not row[list(metric.interval)].isna().any():
                low, high = (float(row[column]) for column in metric.interval)
                ax.hlines(place, low, high, color="black", linewidth=1.4)
                end = max(end, high)
        ax.annotate(text, (end, place), xytext=(4, 0), textcoords="offset points", va="center")
    ax.margins(x=0.15)
    ax.grid(visible=False, axis="y")
    ax.set_ylabel("")


def _numbers(rows: "pandas.DataFrame", metric: Metric, also: Sequence[str]) -> "pandas.DataFrame":
    """The rows that have the metric, as plain floats in the metric's unit."""
    columns = [metric.column, *(metric.interval or ()), *also]
    known = rows[rows[metric.column].notna()].copy()
    known["backend"] = known["backend"].astype(object)
    for column in columns:
        known[column] = known[column].astype(float)
    for column in (metric.column, *(metric.interval or ())):
        known[column] /= metric.unit
    return known


def _panel_title(
    ax: "Axes", title: str, rows: "pandas.DataFrame", x: str | None, metric: Metric
) -> None:
    missing = rows[rows[metric.column].isna()]
    height = 6.0
    if x is not None:
        height += _MARK_POINTS * missing["backend"].nunique()
    ax.set_title(_literal(title), fontsize=9, pad=height)


def _finish(
    canvas: "Canvas",
    table: "pandas.DataFrame",
    metric: Metric,
    x: str | None,
    names: Sequence[str],
    what: str,
    missing: str,
) -> None:
    """Titles, axis labels, the legend of exactly the swept backends, the caption."""
    from matplotlib.lines import Line2D

    for ax in canvas.axes:
        ax.set_xlabel("")
        ax.set_ylabel("")
    devices = ", ".join(sorted(table["device_name"].unique()))
    wide = int(canvas.get_figwidth() * 11)
    title = f"{what[0].upper()}{what[1:]} on {devices}"
    lines = [*wrap(title, wide), *wrap(_fixed_in_words(table), wide)]
    canvas.suptitle(_literal("\n".join(lines)), fontsize=10)
    x_label = metric.label if x is None else f"{x} ({_UNITS[x]})" if x in _UNITS else x
    notes = [line for note in (_interval_note(metric, x), missing) for line in wrap(note, wide)]
    canvas.supxlabel("\n".join([x_label, *notes]), fontsize=9)
    if x is None:
        return
    canvas.supylabel(metric.label, fontsize=9)
    handles = []
    for name in names:
        dash = _DASHES[name]
        known = table[table["backend"] == name][metric.column].notna().any()
        line = Line2D([], [], color=_palette()[name], marker=_MARKERS[name], markeredgecolor="white")
        line.set_linestyle((0, dash) if dash else "-")
        line.set_label(name if known else f"{name} (no result)")
        handles.append(line)
    canvas.legend(handles=handles, loc="outside right center", frameon=False, title="backend")


def _interval_note(metric: Metric, x: str | None) -> str:
    if not metric.interval:
        return ""
    return f"{'upright' if x else 'black'} strokes: 95% interval of the median"


def _fixed_in_words(table: "pandas.DataFrame") -> str:
    fixed = fixed_axes(table)
    words = [str(fixed[name]) for name in ("model", "dtype") if name in fixed]
    if "causal" in fixed:
        words.append("causal" if fixed["causal"] else "not causal")
    if fixed.get("kv_heads") == fixed.get("heads"):
        fixed.pop("kv_heads", None)
    shape = ("seq", "batch", "heads", "kv_heads", "head_dim", "layers")
    words += [f"{name} {fixed[name]}" for name in shape if name in fixed]
    return " · ".join(words)


def _not_drawn(table: "pandas.DataFrame", metric: Metric) -> str:
    """Cases without a number, counted by reason and backend."""
    missing = table[table[metric.column].isna()]
    if missing.empty:
        return ""
    parts = []
    for status, rows in missing.groupby("status", sort=True):
        of = ", ".join(f"{name} {count}" for name, count in rows["backend"].value_counts().items())
        parts.append(f"{len(rows)} {status} ({of})")
    return f"not drawn: {'; '.join(parts)}"


def _missing_backends(missing: "pandas.DataFrame", names: Sequence[str]) -> list[str]:
    return [name for name in names if (missing["backend"] == name).any()]


def _literal(text: str) -> str:
    """A dollar sign would start a formula."""
    return text.replace("$", r"\$")


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _palette() -> dict[str, Any]:
    import seaborn

    return dict(zip(BACKENDS, seaborn.color_palette("colorblind", len(BACKENDS)), strict=True))

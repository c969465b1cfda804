"""Curves over a numeric axis, and the crosses of the cases that have no number."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnscale.report.layout import XAxis, words
from attnscale.report.numbers import number
from attnscale.report.plan import ROOFLINE, Panel, Plan, missing_rows
from attnscale.report.plots.looks import DASHES, MARKERS, drawn_numbers, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 9.5
"""Height of a row of marks above a panel, points."""


def draw_curves(ax: "Axes", plan: Plan, panel: Panel, x: str, width: float) -> None:
    """Lines into one panel that is ``width`` points wide, and the marks above it."""
    import seaborn

    known = drawn_numbers(panel.rows, plan.metric, [x])
    if not known.empty:
        seaborn.lineplot(
            data=known,
            x=x,
            y=plan.metric.column,
            hue="backend",
            style="backend",
            hue_order=plan.backends,
            style_order=plan.backends,
            palette=palette(),
            markers=MARKERS,
            dashes=DASHES,
            markersize=6.5,
            markerfacecolor="none",
            markeredgecolor="auto",
            markeredgewidth=1.2,
            estimator=None,
            errorbar=None,
            legend=False,
            ax=ax,
        )
    if plan.metric.interval:
        for name, one in known.groupby("backend"):
            low, high = (one[end] for end in plan.metric.interval)
            ax.vlines(one[x], low, high, color=palette()[str(name)], linewidth=2.2, alpha=0.6)
    axis = _x_axis(plan, x)
    _x_ticks(ax, axis, width)
    _mark_missing(ax, plan, panel, axis, width)


def strip_rows(plan: Plan, panel: Panel, width: float) -> int:
    """Rows of marks above a panel."""
    if plan.x is None or plan.metric is ROOFLINE:
        return 0
    marked = [marks for _, marks in _missing_marks(plan, panel, _x_axis(plan, plan.x))]
    return sum(1 + any(word.raised for word in words(marks, width)) for marks in marked)


def scale_y(ax: "Axes", plan: Plan) -> None:
    """Of all panels: logarithmic over a factor of four, else linear from zero; plain digits."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    values = _drawn_values(plan)
    spread = max(values) / min(values) if values and min(values) > 0 else 1.0
    if spread > 4:
        steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if spread < 10 else (1.0, 2.0, 5.0)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(base=10, subs=steps if spread < 1000 else (1.0,)))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.set_ylim(0, 1.1 * max(values, default=1.0))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _drawn_values(plan: Plan) -> list[float]:
    columns = [plan.metric.column, *(plan.metric.interval or ())]
    known = [drawn_numbers(panel.rows, plan.metric, []) for panel in plan.panels]
    return [float(value) for rows in known for column in columns for value in rows[column].dropna()]


def _x_axis(plan: Plan, x: str) -> XAxis:
    return XAxis(sorted({int(value) for panel in plan.panels for value in panel.rows[x]}))


def _x_ticks(ax: "Axes", axis: XAxis, width: float) -> None:
    """Ticks at all swept values and nowhere else, written in plain digits."""
    from matplotlib.ticker import NullLocator

    if axis.logarithmic:
        ax.set_xscale("log", base=2)
    labels, slanted = axis.labels(width)
    ax.set_xticks(list(axis.values), labels, rotation=45 if slanted else 0)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(*axis.limits)


def _mark_missing(ax: "Axes", plan: Plan, panel: Panel, axis: XAxis, width: float) -> None:
    """A cross above the panel for each case without a number, a row a backend, its status in words."""
    row = 0
    for name, marks in _missing_marks(plan, panel, axis):
        color = palette()[name]
        said = words(marks, width)
        for place, _ in marks:
            _above(ax, place, row, "×", 10.0, color)
        for word in said:
            _above(ax, word.place, row + word.raised, word.text, 7.5, color)
        row += 1 + any(word.raised for word in said)


def _missing_marks(
    plan: Plan, panel: Panel, axis: XAxis
) -> Iterator[tuple[str, list[tuple[float, str]]]]:
    """Each backend with cases that have no number: their places from left to right and statuses."""
    missing = missing_rows(panel.rows, plan.metric).sort_values(str(plan.x))
    for name in plan.backends:
        rows = missing[missing["backend"] == name]
        if not rows.empty:
            values = zip(rows[plan.x], rows["status"], strict=True)
            yield name, [(axis.place(int(value)), str(status)) for value, status in values]


def _above(ax: "Axes", place: float, row: int, text: str, size: float, color: Any) -> None:
    ax.annotate(
        text,
        xy=(place, 1.0),
        xycoords="axes fraction",
        xytext=(0, 3.0 + ROW * (row + 0.5)),
        textcoords="offset points",
        ha="center",
        va="center_baseline",
        fontsize=size,
        color=color,
        annotation_clip=False,
    )

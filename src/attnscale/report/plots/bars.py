"""Bars by backend, where no numeric axis was swept."""

from typing import TYPE_CHECKING

from attnscale.report.numbers import number
from attnscale.report.plan import Panel, Plan
from attnscale.report.plots.looks import drawn_numbers, palette

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


def draw_bars(ax: "Axes", plan: Plan, panel: Panel) -> None:
    """A bar a backend from zero, its value beside it; one without a number has its status there."""
    from matplotlib.ticker import FuncFormatter

    known = drawn_numbers(panel.rows, plan.metric, [])
    if not known.empty:
        _bars(ax, plan, known)
    ends = _intervals(ax, plan, known)
    values = dict(zip(known["backend"], known[plan.metric.column], strict=True))
    states = dict(zip(panel.rows["backend"], panel.rows["status"], strict=True))
    for place, name in enumerate(plan.backends):
        text = number(values[name]) if name in values else str(states.get(name, "not asked for"))
        at = (ends.get(name, 0.0), place)
        ax.annotate(text, at, xytext=(5, 0), textcoords="offset points", va="center")
    ax.set_yticks(range(len(plan.backends)), plan.backends)
    ax.set_ylim(len(plan.backends) - 0.5, -0.5)  # a bar that is missing keeps its row
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    ax.margins(x=0.2)
    ax.grid(visible=False, axis="y")


def _bars(ax: "Axes", plan: Plan, known: "pandas.DataFrame") -> None:
    import seaborn

    seaborn.barplot(
        data=known,
        x=plan.metric.column,
        y="backend",
        order=plan.backends,
        hue="backend",
        hue_order=plan.backends,
        palette=palette(),
        errorbar=None,
        legend=False,
        ax=ax,
    )


def _intervals(ax: "Axes", plan: Plan, known: "pandas.DataFrame") -> dict[str, float]:
    """Draw them; where each backend's bar or interval ends."""
    ends = {str(name): float(value) for name, value in known[["backend", plan.metric.column]].values}
    if not plan.metric.interval:
        return ends
    whole = known.dropna(subset=list(plan.metric.interval))
    for name, low, high in whole[["backend", *plan.metric.interval]].values:
        place = plan.backends.index(name)
        ax.hlines(place, low, high, color="white", linewidth=4.0)  # apart from a dark bar
        ax.hlines(place, low, high, color="black", linewidth=1.6)
        ends[name] = max(ends[name], float(high))
    return ends

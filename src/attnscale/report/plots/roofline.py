"""The roofline: work done a second over work done a byte, under what the card can do.

Source: Williams, Waterman, Patterson, Roofline: An Insightful Visual Performance Model, 2009.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscale.analyse.datasheet import datasheet
from attnscale.analyse.frame import NUMERIC_AXES
from attnscale.report.numbers import number
from attnscale.report.plan import INTENSITY, Panel, Plan
from attnscale.report.plots.looks import MARKERS, drawn_numbers, palette

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

_MOST_LABELS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What bounds a forward: FLOP/s <= min(flops_per_s, FLOP/byte * bytes_per_s)."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP/byte at which the two bounds meet."""
        return self.flops_per_s / self.bytes_per_s


LOOKS: Mapping[str, Mapping[str, Any]] = {
    "measured on this card": {"color": "#444444", "linewidth": 1.6},
    "datasheet": {"color": "#999999", "linewidth": 1.2, "linestyle": (0, (5, 3))},
}
"""Roof -> its line, for the legend as well."""


def roofs(panel: Panel) -> dict[str, Roof]:
    """By name in LOOKS. The measured one is the median over the workers that measured it."""
    rows, found = panel.rows, {}
    measured = rows[["matmul_flops_per_s", "copy_bytes_per_s"]].dropna().astype(float)
    if not measured.empty:
        matmul, copy = measured.median()
        found["measured on this card"] = Roof(flops_per_s=float(matmul), bytes_per_s=float(copy))
    card = datasheet(str(rows["device_name"].iloc[0]))
    peak = card.flops_per_s.get(str(rows["dtype"].iloc[0])) if card else None
    if card and peak:
        found["datasheet"] = Roof(flops_per_s=peak, bytes_per_s=card.bytes_per_s)
    return found


def draw_roofline(ax: "Axes", plan: Plan, panel: Panel) -> None:
    """A mark a case, on logarithmic axes; a stroke from useful work up to executed work."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    executed = "executed_flops_per_s"
    known = drawn_numbers(panel.rows, plan.metric, [INTENSITY, executed])
    known[executed] /= plan.metric.unit
    ax.set_xscale("log")
    ax.set_yscale("log")
    for name in plan.backends:
        one = known[known["backend"] == name]
        look = {"color": palette()[name], "marker": MARKERS[name], "markerfacecolor": "none"}
        ax.plot(one[INTENSITY], one[plan.metric.column], linestyle="none", markersize=6.5, **look)
        ends = one[plan.metric.column], one[executed].fillna(one[plan.metric.column])
        ax.vlines(one[INTENSITY], *ends, color=palette()[name], linewidth=1.0, alpha=0.6)
    _draw_roofs(ax, plan, panel, known)
    _label_shapes(ax, plan, known)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axis.set_minor_locator(NullLocator())


def _draw_roofs(ax: "Axes", plan: Plan, panel: Panel, known: "pandas.DataFrame") -> None:
    found = roofs(panel)
    marks = [float(value) for value in known[INTENSITY]]
    corners = [roof.ridge for roof in found.values()]
    low, high = min(marks + corners) / 2, max(marks + corners) * 2
    for name, roof in found.items():
        xs = [low, roof.ridge, high]
        ys = [min(roof.flops_per_s, x * roof.bytes_per_s) / plan.metric.unit for x in xs]
        ax.plot(xs, ys, zorder=1.5, label=name, **LOOKS[name])
    ax.set_xlim(low, high)


def _label_shapes(ax: "Axes", plan: Plan, known: "pandas.DataFrame") -> None:
    """Below the marks, which shape stands there, if one alone does and they are few enough to read."""
    axes = [axis for axis in NUMERIC_AXES if known[axis].nunique() > 1]
    axes = [axis for axis in axes if axis not in ("ffn_dim", "kv_heads") or len(axes) == 1]
    shapes = known[[INTENSITY, *axes]].drop_duplicates()
    if not axes or len(shapes) > _MOST_LABELS or shapes[INTENSITY].duplicated().any():
        return
    ax.set_ylim(bottom=known[plan.metric.column].min() / 3)
    for _, row in shapes.iterrows():
        ax.annotate(
            ", ".join(f"{axis} {int(row[axis])}" for axis in axes),
            (float(row[INTENSITY]), 0.02),
            xycoords=("data", "axes fraction"),
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=7.5,
            color="#555555",
        )

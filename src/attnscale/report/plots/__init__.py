"""Scaling curves, bars and the roofline, as PNG and SVG.

A backend has one colour, marker and dash in every figure. Cases without a number are crosses above
the panel at their place on the axis, a row a backend, and are counted under the figure. The user's
own matplotlib settings neither change a figure nor are changed by one.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnscale.report.plan import INTENSITY, ROOFLINE, Panel, Plan, Shares, plan_figures
from attnscale.report.plots.bars import draw_bars
from attnscale.report.plots.curves import ROW, draw_curves, scale_y, strip_rows
from attnscale.report.plots.depth import DepthPlan, draw_depth
from attnscale.report.plots.looks import DASHES, MARKERS, palette
from attnscale.report.plots.roofline import LOOKS, draw_roofline, roofs
from attnscale.report.plots.shares import draw_shares

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_INCH = 72.0  # points
_RC: dict[Any, Any] = {
    "svg.hashsalt": "attnscale",  # the same bytes at every build
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a label is no formula
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
}
_LABELS = {
    "seq": "seq (tokens)",
    "batch": "batch (sequences)",
    "head_dim": "head_dim (elements)",
    "ffn_dim": "ffn_dim (elements)",
    INTENSITY: "useful work a byte (FLOP/byte)",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure: ``path`` with the endings .png and .svg, and what it shows in words."""

    path: Path
    alt: str


def draw_all(table: "pandas.DataFrame", folder: Path, depth: DepthPlan | None = None) -> list[Figure]:
    """Every figure of a sweep into ``folder``, that of ``depth`` first."""
    figures = []
    for plan in [*([depth] if depth else []), *plan_figures(table)]:
        canvas, path = draw(plan), folder / plan.name
        with own_style():
            canvas.savefig(path.with_suffix(".png"), dpi=150)
            canvas.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figures.append(Figure(path, plan.alt))
    return figures


@contextmanager
def own_style() -> Iterator[None]:
    """Matplotlib as it comes, whatever the user has set, and then put back."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        for name, value in _RC.items():
            matplotlib.rcParams[name] = value
        # A label in a script that the font lacks shows boxes here and is whole in the page's table.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def draw(plan: Plan | Shares | DepthPlan) -> "Canvas":
    """The figure of a plan, to be saved within ``own_style``."""
    with own_style():
        if isinstance(plan, DepthPlan):
            return draw_depth(plan)
        return draw_shares(plan) if isinstance(plan, Shares) else _drawn(plan)


def _drawn(plan: Plan) -> "Canvas":
    columns = _columns(plan)
    canvas, axes = _canvas(plan, columns)
    strip = _strip_points(plan, columns)
    for ax, panel in zip(axes, plan.panels, strict=False):
        if plan.metric is ROOFLINE:
            draw_roofline(ax, plan, panel)
        elif plan.x is None:
            draw_bars(ax, plan, panel)
        else:
            draw_curves(ax, plan, panel, plan.x, _panel_inches(columns) * _INCH)
        ax.set_title("\n".join(_title_lines(panel, columns)), fontsize=9, pad=5.0 + strip)
        ax.set(xlabel="", ylabel="")
    _hide_unused(axes, len(plan.panels), columns)
    if plan.x is not None:
        if plan.metric is not ROOFLINE:
            scale_y(axes[0], plan)
        canvas.supylabel(plan.metric.label, fontsize=9)
        _legend(canvas, plan)
    _captions(canvas, plan)
    return canvas


def _canvas(plan: Plan, columns: int) -> tuple["Canvas", list["Axes"]]:
    """A figure in which every panel has about the same room, whatever stands around it."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    lines = math.ceil(len(plan.panels) / columns)
    longest_title = max(len(_title_lines(panel, columns)) for panel in plan.panels)
    head = (longest_title * 12.0 + _strip_points(plan, columns)) / _INCH
    curves = 3.0 if lines < 3 else 2.3
    high = curves if plan.x else 0.36 * len(plan.backends) + 0.4
    size = (columns * (_panel_inches(columns) + 0.4) + 1.9, lines * (high + 0.45 + head) + 1.4)
    canvas = Canvas(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    grid = canvas.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    return canvas, list(grid.flat)


def _columns(plan: Plan) -> int:
    count = len(plan.panels)
    return min(count, 2 if count == 4 else 3)


def _panel_inches(columns: int) -> float:
    """Width of a panel without its labels."""
    return 5.6 if columns == 1 else 3.5


def _title_lines(panel: Panel, columns: int) -> list[str]:
    return wrap(panel.title, int(_panel_inches(columns) * 13))


def _strip_points(plan: Plan, columns: int) -> float:
    """Height of the marks above the panel that has most of them; the same above all."""
    width = _panel_inches(columns) * _INCH
    return ROW * max(strip_rows(plan, panel, width) for panel in plan.panels)


def _hide_unused(axes: Sequence["Axes"], count: int, columns: int) -> None:
    """No empty panel; the one above it gets the labels that the shared axis keeps for the last row."""
    for index in range(count, len(axes)):
        axes[index].set_visible(False)
        axes[index - columns].tick_params(labelbottom=True)


def _captions(canvas: "Canvas", plan: Plan) -> None:
    """Title above; below the name of the axis, how to read it, and what is not drawn."""
    width = int(canvas.get_figwidth() * 12)
    title = [*wrap(plan.title, width), *wrap(plan.fixed, width)]
    canvas.suptitle("\n".join(title), fontsize=10)
    label = plan.metric.label if plan.x is None else _LABELS.get(plan.x, plan.x)
    notes = [line for note in plan.caption for line in wrap(note, width)]
    canvas.supxlabel("\n".join([label, *notes]), fontsize=9)


def _legend(canvas: "Canvas", plan: Plan) -> None:
    """Exactly the swept backends, in their order; then the roofs."""
    from matplotlib.lines import Line2D

    handles = []
    is_roofline = plan.metric is ROOFLINE
    for name in plan.backends:
        dash = DASHES[name]
        line = Line2D([], [], color=palette()[name], marker=MARKERS[name], markerfacecolor="none")
        line.set_linestyle("none" if is_roofline else (0, dash) if dash else "-")
        line.set_label(f"{name} (no result)" if name in plan.without else name)
        handles.append(line)
    known = {name for panel in plan.panels for name in roofs(panel)} if is_roofline else ()
    handles += [Line2D([], [], label=name, **look) for name, look in LOOKS.items() if name in known]
    canvas.legend(
        handles=handles,
        loc="outside right center",
        frameon=False,
        title="backend and roof" if known else "backend",
        handlelength=3.2,
        borderaxespad=1.2,
    )

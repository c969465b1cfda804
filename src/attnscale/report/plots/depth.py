"""Time against depth: measured points, the line through them, its band, and the depth asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from attnscale.analyse.depth import Prediction, Series
from attnscale.report.numbers import number
from attnscale.report.plots.looks import DASHES, MARKERS, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_COLUMNS = 3
_LABEL_GAP = 0.045
"""Of a panel's height."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One series and its predicted latency from its deepest point on."""

    series: Series
    predicted: Sequence[Prediction]
    """By depth, the last at the depth asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthPlan:
    """Shape -> its backends; one panel a shape."""

    panels: dict[str, list[Course]]
    title: str
    caption: Sequence[str]
    name: str = "latency_by_depth"

    @property
    def alt(self) -> str:
        """The figure in words."""
        words = [
            f"{shape}, {one.series.backend}: {number(one.predicted[-1].value)} ms at "
            f"{one.predicted[-1].layers} layers"
            for shape, courses in self.panels.items()
            for one in courses
        ]
        return f"{self.title}. {'; '.join(words)}. {'. '.join(self.caption)}."


def draw_depth(plan: DepthPlan) -> "Canvas":
    """Axes from zero, for a line is to be judged as one."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    count = len(plan.panels)
    columns = min(count, _COLUMNS)
    lines = -(-count // columns)
    size = ((5.6 if columns == 1 else 3.8 * columns) + 1.9, 3.4 * lines + 1.3)
    canvas = Canvas(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    axes = canvas.subplots(lines, columns, squeeze=False).flat
    for ax, (shape, courses) in zip(axes, plan.panels.items(), strict=False):
        for course in courses:
            _draw(ax, course)
        ax.set_title(shape if count > 1 else "", fontsize=9)
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        _name_ends(ax, courses)
    for ax in list(axes)[count:]:
        ax.set_visible(False)
    names = dict.fromkeys(one.series.backend for courses in plan.panels.values() for one in courses)
    handles = [
        Line2D([], [], color=palette()[name], marker=MARKERS[name], markerfacecolor="none", label=name)
        for name in names
    ]
    canvas.legend(handles=handles, loc="outside right center", frameon=False, title="backend")
    width = int(canvas.get_figwidth() * 12)
    canvas.suptitle("\n".join(wrap(plan.title, width)), fontsize=10)
    notes = [line for note in plan.caption for line in wrap(note, width)]
    canvas.supxlabel("\n".join(["layers", *notes]), fontsize=9)
    canvas.supylabel("latency (ms)", fontsize=9)
    return canvas


def _draw(ax: "Axes", course: Course) -> None:
    name = course.series.backend
    color, dash = palette()[name], DASHES[name]
    known = [(r.case.layers, r.outcome.metrics.latency_ms) for r in course.series.records]
    depths = [layers for layers, time in known if time is not None]
    times = [time for _, time in known if time is not None]
    ax.plot(depths, times, color=color, marker=MARKERS[name], markerfacecolor="none", linestyle="none")
    at = [one.layers for one in course.predicted]
    style = (0, dash) if dash else "-"
    ax.plot(at, [one.value for one in course.predicted], color=color, linestyle=style, linewidth=1.2)
    ends = [one.low for one in course.predicted], [one.high for one in course.predicted]
    ax.fill_between(at, *ends, color=color, alpha=0.15, linewidth=0)


def _name_ends(ax: "Axes", courses: Sequence[Course]) -> None:
    """The last value of each, moved up where two would overlap."""
    bottom, top = ax.get_ylim()
    least = (top - bottom) * _LABEL_GAP
    place = bottom - least
    for course in sorted(courses, key=lambda one: one.predicted[-1].value):
        last = course.predicted[-1]
        place = max(last.value, place + least)
        ax.annotate(
            number(last.value),
            (last.layers, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=palette()[course.series.backend],
            annotation_clip=False,
        )

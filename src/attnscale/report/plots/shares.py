"""Where the time goes: a bar a case, divided."""

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnscale.report.numbers import number
from attnscale.report.plan import Shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_HATCHES = ("", "", "", "", "", "////", "....", "xx", "\\\\\\\\", "")


def draw_shares(plan: Shares) -> "Canvas":
    """Each bar is the whole of a case's kernel time."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import PercentFormatter

    shares = plan.rows[list(plan.parts)].astype(float)
    shares = shares.div(shares.sum(axis=1), axis=0).fillna(0.0)
    size = (9.5, 0.27 * len(shares) + 2.1)
    canvas = Canvas(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    ax = canvas.subplots()
    places = range(len(shares))
    left = [0.0] * len(shares)
    for index, (column, label) in enumerate(plan.parts.items()):
        widths = list(shares[column])
        if any(widths):
            look: dict[str, Any] = {"color": _colors()[index], "hatch": _HATCHES[index]}
            ax.barh(places, widths, left=left, label=label, edgecolor="white", linewidth=0.6, **look)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, (ms, kernels) in enumerate(plan.rows[["kernel_ms", "kernels"]].values):
        ax.annotate(
            f"{number(ms)} ms, {kernels}",
            (1.0, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
        )
    ax.set_yticks(places, plan.labels)
    ax.set_ylim(len(shares) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.grid(visible=False, axis="y")
    width = int(canvas.get_figwidth() * 12)
    canvas.suptitle("\n".join([*wrap(plan.title, width), *wrap(plan.fixed, width)]), fontsize=10)
    notes = [line for note in plan.caption for line in wrap(note, width)]
    canvas.supxlabel("\n".join(["share of the kernels' time", *notes]), fontsize=9)
    canvas.legend(loc="outside right center", frameon=False, borderaxespad=1.2)
    return canvas


def _colors() -> list[Any]:
    """One a part, and hatches where two would look alike."""
    import seaborn

    return list(seaborn.color_palette("colorblind", 10))

"""What a backend looks like, the same in every figure whatever else was swept."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnscale.case import BACKENDS
from attnscale.report.plan import Metric

if TYPE_CHECKING:
    import pandas

MARKERS = dict(zip(BACKENDS, "os^DvP*", strict=True))
# Later backends are drawn over earlier ones and have more gap, so that both show where they meet.
DASHES: dict[str, Any] = dict(
    zip(BACKENDS, ["", (8, 1), (5, 1.2), (4, 1, 1, 1), (5, 2.5), (3, 3), (1, 3)], strict=True)
)


def palette() -> dict[str, Any]:
    """Colours that stay apart for colour-blind readers.

    math, the reference, is grey; auto, which is no kernel of its own, is nearly black.
    """
    import seaborn

    blue, _, green, red, purple, _, _, grey, _, sky = seaborn.color_palette("colorblind", 10)
    return dict(zip(BACKENDS, (blue, sky, grey, green, red, purple, "#222222"), strict=True))


def drawn_numbers(rows: "pandas.DataFrame", metric: Metric, also: Sequence[str]) -> "pandas.DataFrame":
    """The rows that have the metric, as plain floats in the metric's unit."""
    drawn = [metric.column, *(metric.interval or ())]
    known = rows[rows[metric.column].notna()].copy()
    known["backend"] = known["backend"].astype(object)
    for column in [*drawn, *also]:
        known[column] = known[column].astype(float)
    for column in drawn:
        known[column] /= metric.unit
    return known

"""Where ticks, their labels and the marks of missing points go: pure arithmetic, no drawing.

A place is a fraction of the panel's width, 0 at its left edge; text widths are in points.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MARGIN = 0.07  # of the span of the values, on either side
_MARK = 9.0  # width of a cross and the space after it, points
_LETTER = 4.4  # mean width of a letter of the 7.5 point font, points


@dataclass(frozen=True, slots=True)
class XAxis:
    """The values of one axis, and how they lie in a panel."""

    values: Sequence[int]
    """Swept values, ascending."""

    @property
    def logarithmic(self) -> bool:
        """Powers spread evenly only on a logarithmic axis; equal steps only on a linear one."""
        steps = {b - a for a, b in itertools.pairwise(self.values)}
        equal_steps = len(self.values) > 2 and len(steps) == 1
        return self.values[-1] / self.values[0] >= 2 and not equal_steps

    @property
    def limits(self) -> tuple[float, float]:
        low, high = (self._scaled(value) for value in (self.values[0], self.values[-1]))
        margin = _MARGIN * (high - low or 1.0)
        return self._unscaled(low - margin), self._unscaled(high + margin)

    def place(self, value: float) -> float:
        """Of a value, as a fraction of the panel's width."""
        low, high = (self._scaled(limit) for limit in self.limits)
        return (self._scaled(value) - low) / (high - low)

    def labels(self, width: float) -> tuple[list[str], bool]:
        """The text of every tick, and whether they are slanted; empty where it would not fit."""
        texts = [str(value) for value in self.values]
        level = [self.place(value) * width for value in self.values]
        slanted = any(
            b - a < 6.0 * (len(left) + len(right)) / 2 + 5.0
            for (a, left), (b, right) in itertools.pairwise(zip(level, texts, strict=True))
        )
        room = 12.0  # points that a slanted line of text is apart from the next
        last = -math.inf
        for index, position in enumerate(level if slanted else ()):
            if position - last < room:
                texts[index] = ""
            else:
                last = position
        return texts, slanted

    def _scaled(self, value: float) -> float:
        return math.log2(value) if self.logarithmic else float(value)

    def _unscaled(self, value: float) -> float:
        return float(2.0**value) if self.logarithmic else value


@dataclass(frozen=True, slots=True)
class Word:
    """A status beside its crosses."""

    place: float
    """Of its middle."""
    raised: bool
    """Whether it needs a row of its own above the crosses."""
    text: str


def words(marks: Sequence[tuple[float, str]], width: float) -> list[Word]:
    """The status of each run of crosses of one backend, said once where there is room.

    ``marks`` are places and statuses from left to right in a panel ``width`` points wide: in a gap of
    the run if it fits, else right of it, else left of it, else above it.
    """
    found: list[Word] = []
    taken = -_MARK  # right end of what is written so far
    for run, following in _runs(marks, width):
        text = run[0][1]
        long = _LETTER * len(text)
        first, last = run[0][0] * width, run[-1][0] * width
        middles = [(a * width, b * width) for (a, _), (b, _) in itertools.pairwise(run)]
        gap = next((pair for pair in middles if pair[1] - pair[0] >= long + 2 * _MARK), None)
        if gap:
            middle, raised = sum(gap) / 2, False
        elif following - last >= long + 2 * _MARK:
            middle, raised = last + (_MARK + long) / 2 + 2.0, False
        elif first - taken >= long + 2 * _MARK:
            middle, raised = first - (_MARK + long) / 2 - 2.0, False
        else:
            middle, raised = min(max((first + last) / 2, long / 2), width - long / 2), True
        found.append(Word(middle / width, raised, text))
        taken = max(last, middle + long / 2 if not raised else last)
    return found


def _runs(
    marks: Sequence[tuple[float, str]], width: float
) -> Iterator[tuple[list[tuple[float, str]], float]]:
    """Runs of one status, each with where the next begins; the last has the panel's edge."""
    runs = [list(group) for _, group in itertools.groupby(marks, key=lambda mark: mark[1])]
    edges = [run[0][0] * width for run in runs[1:]]
    yield from zip(runs, [*edges, width + _MARK], strict=True)

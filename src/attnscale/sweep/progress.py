"""What a running sweep shows: one bar on a terminal, one line a case elsewhere, on standard error.

The bar moves when a case begins or ends and at no other time: a thread that redraws it would run
beside the measuring.
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from attnscale.case import Case
from attnscale.record import Record

_REST_WIDTH = 70
"""Of the bar, the count, the outcomes and the time left; the current case gets what is left."""


class SweepProgress:
    """The bar and the lines of one sweep; safe to call from every lane's thread."""

    def __init__(self, todo: Sequence[Case], console: Console) -> None:
        columns = (
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, max_width=max(console.width - _REST_WIDTH, 10)),
            ),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[outcomes]} {task.fields[left]}"),
        )
        quiet = not console.is_terminal
        self._bar = Progress(*columns, console=console, disable=quiet, auto_refresh=False)
        self._task = self._bar.add_task("", total=len(todo), outcomes="", left="")
        self._total = len(todo)
        self._done: Counter[str] = Counter()
        self._current: dict[str, str] = {}
        self._recent_s: deque[float] = deque(maxlen=8)
        self._left = ""
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begins(self, case: Case) -> None:
        """A lane takes up ``case``."""
        with self._lock:
            self._current[case.key] = case.slug
            self._show()

    def ended(self, record: Record, seconds: float, lanes: int) -> None:
        """Its record is on disk; it took its lane so long, without starting a worker."""
        with self._lock:
            self._current.pop(record.key, None)
            self._done[record.outcome.status.value] += 1
            self._recent_s.append(seconds)
            self._say(f"[{self._done.total()}/{self._total}] {record.slug} {_in_short(record)}")
            self._bar.advance(self._task)
            self._left = self._estimate(lanes)
            self._show()

    def notice(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._say(text)

    def _say(self, text: str) -> None:
        self._bar.console.print(Text(text), soft_wrap=True)

    def _estimate(self, lanes: int) -> str:
        """From the latest cases: the next will be like them, or larger."""
        to_do = self._total - self._done.total()
        mean_s = sum(self._recent_s) / len(self._recent_s)
        return time_left(to_do * mean_s / lanes) if to_do else ""

    def _show(self) -> None:
        outcomes = ", ".join(f"{count} {status}" for status, count in self._done.items())
        first, *others = [*self._current.values(), ""]
        current = f"{first} + {len(others) - 1} more" if len(others) > 1 else first
        self._bar.update(
            self._task, description=current, outcomes=outcomes, left=self._left, refresh=True
        )


def time_left(seconds: float) -> str:
    """Such as "at least 3 min left"; cases run from small to large, so it may well take longer."""
    if seconds < 90:
        return f"at least {seconds:.0f} s left"
    if seconds < 5400:
        return f"at least {seconds / 60:.0f} min left"
    return f"at least {seconds / 3600:.1f} h left"


def _in_short(record: Record) -> str:
    outcome = record.outcome
    if outcome.metrics.latency_ms is None:
        return f"{outcome.status}: {outcome.reason}"
    return f"{outcome.status} {outcome.metrics.latency_ms:.3f} ms"

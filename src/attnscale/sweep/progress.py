"""What a running sweep shows: one bar on a terminal, one line a case elsewhere, on standard error.

The bar moves when a case begins or ends and at no other time: a thread that redraws it would run
beside the measuring.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from attnscale.case import Case
from attnscale.measure.cost import costs
from attnscale.record import Record


class SweepProgress:
    """The bar and the lines of one sweep; safe to call from every lane's thread."""

    def __init__(self, todo: Sequence[Case], console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
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
        self._time_left = TimeLeft(todo)
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
        """Its record is on disk; it took a lane this long, everything included."""
        with self._lock:
            self._current.pop(record.key, None)
            self._done[record.outcome.status.value] += 1
            self._time_left.learn(record.case, seconds)
            self._say(f"[{self._done.total()}/{self._total}] {record.slug} {_in_short(record)}")
            self._bar.advance(self._task)
            self._show(self._time_left.text(lanes))

    def notice(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._say(text)

    def _say(self, text: str) -> None:
        self._bar.console.print(Text(text), soft_wrap=True)

    def _show(self, left: str | None = None) -> None:
        outcomes = ", ".join(f"{count} {status}" for status, count in self._done.items())
        self._left = self._left if left is None else left
        current = " + ".join(self._current.values())
        self._bar.update(
            self._task, description=current, outcomes=outcomes, left=self._left, refresh=True
        )


class TimeLeft:
    """How long the remaining cases will take, from those done: a share for each case and one for work.

    Cases run from small to large, so that a mean over those done would promise too little.
    """

    def __init__(self, todo: Sequence[Case]) -> None:
        self._work = {case.key: _work(case) for case in todo}
        self._seconds: list[float] = []
        self._work_done = 0

    def learn(self, case: Case, seconds: float) -> None:
        """``case`` took so long."""
        self._work_done += self._work.pop(case.key, 0)
        self._seconds.append(seconds)

    def seconds(self, lanes: int) -> float:
        """Time left on so many devices; an estimate and no more."""
        share = min(self._seconds)
        per_work = (sum(self._seconds) - share * len(self._seconds)) / max(self._work_done, 1)
        return (share * len(self._work) + per_work * sum(self._work.values())) / max(lanes, 1)

    def text(self, lanes: int) -> str:
        """Such as "about 3 min left"."""
        if not self._work:
            return ""
        seconds = self.seconds(lanes)
        if seconds < 90:
            return f"about {seconds:.0f} s left"
        if seconds < 5400:
            return f"about {seconds / 60:.0f} min left"
        return f"about {seconds / 3600:.1f} h left"


def _work(case: Case) -> int:
    """FLOPs of all forwards of the case, more or less."""
    return costs(case, ran=None).useful_flops * (case.timing.warmup + case.timing.samples + 1)


def _in_short(record: Record) -> str:
    outcome = record.outcome
    if outcome.metrics.latency_ms is None:
        return f"{outcome.status}: {outcome.reason}"
    return f"{outcome.status} {outcome.metrics.latency_ms:.3f} ms"

"""What a running sweep shows on a terminal and in a log, and how long it says that it will take."""

import io
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from attnscale.case import Case
from attnscale.measure.cost import costs
from attnscale.record import Record, Status
from attnscale.sweep.progress import SweepProgress, time_left
from tests.conftest import make_case, make_record

GRID = [make_case(seq=seq, backend=b) for seq in (16, 32, 64, 128) for b in ("naive", "math")]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOSTILE = "[bold]big[/bold] [/nope] [link=https://a.example]here[/] :smile: \\[x]"


class Shown:
    """A console that remembers."""

    def __init__(self, *, terminal: bool, width: int = 160) -> None:
        self._file = io.StringIO()
        self.console = Console(
            file=self._file, force_terminal=terminal, width=width, color_system=None, _environ={}
        )

    @property
    def raw(self) -> str:
        return self._file.getvalue()

    def lines(self) -> list[str]:
        """All that was written, each state of the bar a line of its own, without control codes."""
        parts = (CONTROL.sub("", part).rstrip() for part in re.split(r"[\r\n]+", self.raw))
        return [part for part in parts if part]

    def bars(self) -> list[str]:
        """The states of the bar: the lines that don't stay, and have no [1/8]."""
        return [line for line in self.lines() if re.search(r" \d+/\d+( |$)", line)]

    def left_s(self) -> float | None:
        """The estimate that the bar shows now, in seconds."""
        now = CONTROL.sub("", self.raw[-400:]).rstrip().rpartition("\r")[2]
        found = re.search(r"at least ([\d.]+) (s|min|h) left$", now)
        return float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] if found else None


def in_a_log(width: int = 80) -> Shown:
    return Shown(terminal=False, width=width)


def on_a_terminal(width: int = 160) -> Shown:
    return Shown(terminal=True, width=width)


def run(shown: Shown, todo: Sequence[Case], took: Sequence[float], lanes: int = 1) -> list[float | None]:
    """End as many of ``todo`` as there are times; the estimate after each, in seconds."""
    estimates = []
    with SweepProgress(todo, shown.console) as progress:
        for case, seconds in zip(todo, took, strict=False):
            progress.begins(case)
            progress.ended(make_record(case), seconds, lanes)
            estimates.append(shown.left_s())
    return estimates


# In a log


def test_a_log_has_one_line_a_case_and_no_bar() -> None:
    shown = in_a_log()
    with SweepProgress(GRID[:3], shown.console) as progress:
        progress.notice("a word before")
        for case, status in zip(GRID, (Status.OK, Status.OOM, Status.CRASHED), strict=False):
            progress.begins(case)
            progress.ended(make_record(case, status=status), 1.0, 1)
    assert shown.raw.splitlines() == [
        "a word before",
        f"[1/3] {GRID[0].slug} ok 2.000 ms",
        f"[2/3] {GRID[1].slug} oom: a oom of the tests",
        f"[3/3] {GRID[2].slug} crashed: a crashed of the tests",
    ]


def test_a_long_line_of_a_log_is_not_broken() -> None:
    shown = in_a_log()
    with SweepProgress(GRID, shown.console) as progress:
        progress.notice("long " * 100)
        progress.ended(make_record(GRID[0], status=Status.FAILED, reason="why " * 100), 1.0, 1)
    assert len(shown.raw.splitlines()) == 2


@pytest.mark.parametrize("shown", [in_a_log, on_a_terminal])
def test_text_of_others_is_shown_as_it_is(shown: Callable[[], Shown]) -> None:
    """Square brackets are no markup, colons no emoji."""
    there = shown()
    record = make_record(GRID[0], status=Status.FAILED, reason=HOSTILE)
    with SweepProgress(GRID, there.console) as progress:
        progress.notice(HOSTILE)
        progress.ended(record.model_copy(update={"slug": HOSTILE}), 1.0, 1)
    assert HOSTILE in there.lines()
    assert f"[1/8] {HOSTILE} failed: {HOSTILE}" in there.lines()


def test_a_label_with_markup_does_no_harm_to_the_bar() -> None:
    shown = on_a_terminal()
    case = make_case(model=HOSTILE)
    run(shown, [case], [1.0])
    assert shown.bars()[1].startswith(case.slug)


# On a terminal


def test_a_bar_shows_the_current_case_the_outcomes_and_the_time_left() -> None:
    shown = on_a_terminal()
    statuses = (Status.OK, Status.OK, Status.OOM, Status.TIMEOUT)
    with SweepProgress(GRID, shown.console) as progress:
        for case, status in zip(GRID, statuses, strict=False):
            progress.begins(case)
            progress.ended(make_record(case, status=status), 3.0, 1)
        progress.begins(GRID[4])
    bar = shown.bars()[-1]
    assert bar.startswith(f"{GRID[4].slug} ")
    assert bar.endswith(" 4/8 2 ok, 1 oom, 1 timeout at least 12 s left")
    assert f"[2/8] {GRID[1].slug} ok 2.000 ms" in shown.lines()


def test_a_bar_moves_when_a_case_begins_and_when_it_ends() -> None:
    shown = on_a_terminal()
    run(shown, GRID, [1.0] * len(GRID))
    counts = [re.findall(r" (\d)/8", bar)[0] for bar in shown.bars()]
    assert [count for count in "012345678" if count not in counts] == []
    assert counts == sorted(counts)
    assert {case.slug for case in GRID} <= {bar.split()[0] for bar in shown.bars()}


@pytest.mark.parametrize(
    ("lanes", "ends"),
    [(1, ""), (2, " + 1 more"), (8, " + 7 more")],
    ids=["one-lane", "two", "eight"],
)
def test_a_bar_names_one_case_and_counts_the_others_that_run(lanes: int, ends: str) -> None:
    shown = on_a_terminal()
    with SweepProgress(GRID, shown.console) as progress:
        for case in GRID[:lanes]:
            progress.begins(case)
    assert re.match(rf"{re.escape(GRID[0].slug + ends)}\s+0/8$", shown.bars()[-1])


def test_a_bar_without_a_running_case_names_none() -> None:
    shown = on_a_terminal()
    run(shown, GRID, [1.0] * len(GRID))
    assert re.match(r"\s*━+\s+8/8 8 ok$", shown.bars()[-1])


def test_the_count_is_seen_on_a_terminal_of_80_columns() -> None:
    todo = [
        make_case(seq=1024 * n, device="cuda", model="llama3_8b", backend="cudnn") for n in (1, 2, 4)
    ]
    shown = on_a_terminal(width=80)
    with SweepProgress(todo, shown.console) as progress:
        for case in todo:
            progress.begins(case)
        progress.ended(make_record(todo[0]), 3.0, 2)
    last = shown.lines()[-1]
    assert last.endswith("1 ok at least 3 s left")
    assert "1/3" in last


def test_with_nothing_to_do_no_time_is_left() -> None:
    shown = on_a_terminal()
    with SweepProgress([], shown.console) as progress:
        progress.notice("0 of 3 cases are to do")
    assert "0 of 3 cases are to do" in shown.lines()
    assert "left" not in shown.raw


def test_lanes_do_not_write_into_each_others_lines() -> None:
    todo = [make_case(seq=seq) for seq in range(1, 201)]
    shown = in_a_log()
    with SweepProgress(todo, shown.console) as progress:

        def one(case: Case) -> None:
            progress.begins(case)
            progress.ended(make_record(case), 0.1, 8)

        with ThreadPoolExecutor(max_workers=8) as lanes:
            list(lanes.map(one, todo))
    lines = shown.raw.splitlines()
    assert [line.split()[0] for line in lines] == [f"[{count}/200]" for count in range(1, 201)]
    assert {line.split()[1] for line in lines} == {case.slug for case in todo}


# Time left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "at least 0 s left"),
        (0.4, "at least 0 s left"),
        (89, "at least 89 s left"),
        (120, "at least 2 min left"),
        (3599, "at least 60 min left"),
        (5400, "at least 1.5 h left"),
        (360000, "at least 100.0 h left"),
    ],
    ids=str,
)
def test_time_left_has_a_unit_that_fits(seconds: float, text: str) -> None:
    assert time_left(seconds) == text


def test_nothing_is_estimated_before_a_case_has_ended() -> None:
    shown = on_a_terminal()
    with SweepProgress(GRID, shown.console) as progress:
        progress.begins(GRID[0])
    assert "left" not in shown.raw


def test_cases_that_take_the_same_leave_the_same_for_each() -> None:
    assert run(on_a_terminal(), GRID, [3.0] * 4) == [21.0, 18.0, 15.0, 12.0]


def test_two_lanes_take_half_as_long() -> None:
    one, two = (run(on_a_terminal(), GRID, [5.0] * 4, lanes)[-1] for lanes in (1, 2))
    assert (one, two) == (20.0, 10.0)


def test_nothing_is_left_at_the_end() -> None:
    shown = on_a_terminal()
    assert run(shown, GRID, [3.0] * len(GRID))[-2:] == [3.0, None]
    assert "left" not in shown.bars()[-1]


def test_a_slow_case_is_forgotten_after_eight_others() -> None:
    todo = [make_case(seq=seq) for seq in range(1, 11)]
    estimates = run(on_a_terminal(), todo, [1000.0, *[1.0] * 8])
    assert estimates[0] == 9000.0
    assert estimates[-1] == 1.0


SEQS = [2**power for power in range(4, 14)]


@pytest.mark.parametrize("backends", [1, 4], ids=["a-backend", "four"])
@pytest.mark.parametrize(
    ("share_s", "work_s"), [(2, 0), (0, 60), (1, 60), (0.2, 600), (0, 9000)], ids=str
)
def test_what_is_left_is_at_least_what_it_says_when_cases_grow(
    share_s: float, work_s: float, backends: int
) -> None:
    """Each case takes ``share_s`` and its part of ``work_s`` by its FLOPs."""
    names = ("naive", "math", "flash", "auto")[:backends]
    todo = [make_case(seq=seq, backend=name) for seq in SEQS for name in names]
    flops = [costs(case, ran=None).useful_flops for case in todo]
    took = [share_s + work_s * one / sum(flops) for one in flops]
    rounding_s = 1 if sum(took) < 90 else 180
    for done, said in enumerate(run(on_a_terminal(), todo, took[:-1]), start=1):
        left = sum(took[done:])
        assert said is not None
        assert said <= left + rounding_s
        if work_s == 0:
            assert said == pytest.approx(left, abs=rounding_s)


def test_every_outcome_is_counted() -> None:
    todo = [make_case(seed=seed) for seed in range(len(Status))]
    found: list[Record] = [
        make_record(case, status=status) for case, status in zip(todo, Status, strict=True)
    ]
    shown = on_a_terminal()
    with SweepProgress(todo, shown.console) as progress:
        for record in found:
            progress.ended(record, 1.0, 1)
    assert shown.bars()[-1].endswith(" 8/8 " + ", ".join(f"1 {status}" for status in Status))

"""What the terminal says: it fits, it names what failed, and it is plain when piped."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attnscale.analyse.frame import frame
from attnscale.case import Case
from attnscale.record import Record, Skipped, Status, record_path
from attnscale.report import terminal
from attnscale.report.numbers import interval, number, short

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]
SWEEP = Path("outputs/a")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def _say(*records: Record, skipped: tuple[Skipped, ...] = (), columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal.show(records, frame(records), skipped, SWEEP)
        return capsys.readouterr().out

    return _say


def wide_sweep(make_record: MakeRecord, make_case: MakeCase, gib: int | None = 3) -> list[Record]:
    records = []
    for seq in (1024, 16384):
        for batch in (1, 64):
            for backend in ("naive_inplace", "efficient", "cudnn"):
                case = make_case(seq=seq, batch=batch, backend=backend)
                status = Status.UNSUPPORTED if (backend, seq) == ("cudnn", 16384) else Status.OK
                peak = gib and gib * 2**30 + 123456789
                records.append(
                    make_record(case, status=status, latency_ms=seq / 83, peak_allocated_bytes=peak)
                )
    return records


def test_table_fits_80_columns_and_is_plain(
    say: Callable[..., str], make_record: MakeRecord, make_case: MakeCase
) -> None:
    out = say(*wide_sweep(make_record, make_case))
    table = [line for line in out.splitlines() if line.startswith(("naive", "efficient", "cudnn"))]
    assert len(table) == 12, "no cell is folded"
    assert max(len(line) for line in out.splitlines() if not line.startswith("unsupported:")) <= 80
    assert "\x1b" not in out
    assert "197.4" in out  # 16384 / 83 ms
    assert "3.115" in out  # GiB


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [(200, ""), (60, "first call ms, tokens /s"), (40, "95% interval ms")],
)
def test_columns_that_do_not_fit_are_left_out_and_named(
    say: Callable[..., str], make_record: MakeRecord, make_case: MakeCase, columns: int, left_out: str
) -> None:
    out = say(*wide_sweep(make_record, make_case), columns=columns)
    named = [line for line in out.splitlines() if line.startswith("left out")]
    assert len(named) == bool(left_out)
    assert all(name in named[0] for name in left_out.split(", ") if left_out)


def test_no_column_for_what_nobody_measured(
    say: Callable[..., str], make_record: MakeRecord, make_case: MakeCase
) -> None:
    assert "GiB" not in say(*wide_sweep(make_record, make_case, gib=None))


def test_what_failed_and_what_is_unreadable_is_named_with_its_place(
    say: Callable[..., str], make_record: MakeRecord, make_case: MakeCase
) -> None:
    oom = make_record(make_case(backend="math"), status=Status.OOM, reason="tried 2 GiB [red]x[/red]")
    broken = Skipped(path=SWEEP / "cases/b/record.json", why="the file: Invalid JSON")
    out = say(make_record(), oom, skipped=(broken,))
    where = record_path(SWEEP, oom.case)
    assert f"oom: {oom.slug}: tried 2 GiB [red]x[/red] (more in {where})" in out.splitlines()
    assert f"not read: {broken.path}: the file: Invalid JSON" in out.splitlines()


def test_a_reason_can_not_drive_the_terminal(
    say: Callable[..., str], make_record: MakeRecord, make_case: MakeCase
) -> None:
    evil = make_record(make_case(model="\x1b]0;x\x07"), status=Status.FAILED, reason="a\x1b[2J\nb")
    for out in (say(evil), say(make_record(), evil)):
        assert "\x1b" not in out
        assert "\x07" not in out
        assert len([line for line in out.splitlines() if line.startswith("failed:")]) == 1


def test_one_case_is_told_in_full(say: Callable[..., str], make_record: MakeRecord) -> None:
    out = say(make_record(peak_allocated_bytes=3 * 2**30))
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    told = {name: text.strip() for name, text in lines.items()}
    assert told["latency_ms"] == "2"
    assert (told["latency_ci_low_ms"], told["latency_ci_high_ms"]) == ("1.96", "2.04")
    assert told["first_call_ms"] == "20"
    assert told["tokens_per_s"] == "16,000"
    assert told["peak_allocated_bytes"] == "3,221,225,472 (3 GiB)"
    assert told["useful_flops"] == "1,000,000 (0.001 GFLOP)"
    assert told["samples"] == "6"


def test_one_case_says_why_a_number_is_null(say: Callable[..., str], make_record: MakeRecord) -> None:
    (line,) = (line for line in say(make_record()).splitlines() if line.startswith("peak_alloc"))
    assert line.split(maxsplit=1)[1].strip() == "null: device is cpu"


def test_one_failed_case_has_its_reason(say: Callable[..., str], make_record: MakeRecord) -> None:
    out = say(make_record(status=Status.TIMEOUT, reason="longer than 60 s"))
    assert "longer than 60 s" in out
    assert "latency_ms" not in out


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.012346, "0.01235"), (1.5, "1.5"), (237, "237"), (1234.4, "1,234"),
     (0.00000373, "3.73e-06")],
)  # fmt: skip
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (12, "12"), (210855, "210.9k"), (999_999, "1M"), (3.2e9, "3.2G")]
)
def test_short(value: float | None, text: str) -> None:
    assert short(value) == text


def test_interval_needs_both_ends() -> None:
    assert interval(1.0, 2.5) == "1 - 2.5"
    assert interval(None, 2.5) == "-"

"""The record on disk: whole or not there, read or named."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from attnscale import record as records
from attnscale.case import Case
from attnscale.record import Kind, Outcome, Record, Status
from tests.conftest import as_schema_2

MakeRecord = Callable[..., Record]


def test_what_is_written_is_read_back(make_record: MakeRecord, tmp_path: Path) -> None:
    record = make_record()
    path = records.write(record, tmp_path)
    assert path == tmp_path / "cases" / record.case.folder_name / "record.json"
    assert records.read(path) == record


def test_a_failed_write_leaves_the_old_record_and_no_rubbish(
    make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = records.write(make_record(latency_ms=1.0), tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write(make_record(latency_ms=2.0), tmp_path)
    assert records.read(path).outcome.metrics.latency_ms == 1.0
    assert [entry.name for entry in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[: len(text) // 2], "Invalid JSON"),
        (lambda text: "", "Invalid JSON"),
        (lambda text: "[]", "should be an object"),
        (
            lambda text: text.replace('"schema_version": 4', '"schema_version": 99'),
            "schema_version 99, this release reads 1 to 4",
        ),
        (lambda text: text.replace('"seq": 16', '"seq": 32'), "is not that of its case"),
        (lambda text: text.replace('"seq": 16', '"seq": 0'), "seq=0"),
        (lambda text: text.replace('"latency_ms": 2.0', '"latency_ms": NaN'), "finite"),
        (lambda text: text.replace('"status": "ok"', '"status": "fine"'), "status"),
    ],
    ids=[
        "truncated",
        "empty",
        "foreign",
        "newer-schema",
        "key",
        "invalid-case",
        "nan",
        "unknown-status",
    ],
)
def test_a_damaged_record_is_named_and_skipped(
    make_record: MakeRecord,
    make_case: Callable[..., Case],
    tmp_path: Path,
    damage: Callable[[str], str],
    why: str,
) -> None:
    good = records.write(make_record(make_case(backend="math")), tmp_path)
    bad = records.write(make_record(), tmp_path)
    damaged = damage(bad.read_text())
    assert damaged != bad.read_text()
    bad.write_text(damaged)
    read, skipped = records.read_sweep(tmp_path)
    assert [records.record_path(tmp_path, record.case) for record in read] == [good]
    assert [entry.path for entry in skipped] == [bad]
    assert why in skipped[0].why
    assert "\n" not in skipped[0].why


def test_a_record_of_schema_2_is_read_with_the_reason_of_what_it_lacks(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    record = make_record(peak_allocated_bytes=2**20)
    path = records.write(record, tmp_path)
    path.write_text(json.dumps(as_schema_2(json.loads(path.read_text()))))
    old = records.read(path)
    assert old.schema_version == 2
    assert old.case == record.case
    assert old.outcome.latency_samples_ms == record.outcome.latency_samples_ms
    assert old.outcome.metrics.latency_ms == record.outcome.metrics.latency_ms
    assert old.outcome.metrics.rel_error is None
    assert old.outcome.nulls["rel_error"] == "not measured by releases that wrote schema 1 and 2"


def test_a_record_of_schema_3_is_read_without_kernels(make_record: MakeRecord, tmp_path: Path) -> None:
    record = make_record(device_ms=1.0)
    path = records.write(record, tmp_path)
    raw = json.loads(path.read_text()) | {"schema_version": 3}
    for name in ("profile", "backend_ran"):
        del raw["outcome"][name], raw["outcome"]["nulls"][name]
    path.write_text(json.dumps(raw))
    old = records.read(path)
    assert old.outcome.metrics == record.outcome.metrics
    assert old.outcome.nulls["profile"] == "no kernels were read by releases that wrote schema 1 to 3"


def test_the_committed_records_of_earlier_releases_are_read() -> None:
    results = Path(__file__).parent.parent / "docs/results/2026-12-01-h200"
    found = [records.read_sweep(folder.parent) for folder in results.glob("*/cases")]
    assert sum(len(read) for read, _ in found) > 50
    assert [skipped for _, skipped in found if skipped] == []


def test_an_old_record_with_another_key_than_its_cases_is_damaged(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    path = records.write(make_record(), tmp_path)
    path.write_text(json.dumps(as_schema_2(json.loads(path.read_text())) | {"key": "0" * 12}))
    with pytest.raises(ValueError, match="key 000000000000 is not that of its case"):
        records.read(path)


def test_repeats_lie_apart_from_the_cases_and_are_counted(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    record = make_record()
    records.write(record, tmp_path)
    paths = [records.write_repeat(record, tmp_path) for _ in range(3)]
    assert [path.parent.name[-2:] for path in paths] == ["-1", "-2", "-3"]
    assert records.read_repeats(tmp_path) == ([record] * 3, [])
    assert records.read_sweep(tmp_path) == ([record], [])


@pytest.mark.parametrize(
    ("device_ms", "host_ms", "kind"),
    [
        (2.0, 0.5, Kind.GPU_BOUND),
        (0.2, 0.5, Kind.LAUNCH_BOUND),
        (None, 3.0, Kind.LAUNCH_BOUND),
        (None, 1.0, Kind.GPU_BOUND),
        (None, None, Kind.CPU),
    ],
    ids=["gpu", "launches", "launches-without-device_ms", "gpu-without-device_ms", "cpu"],
)
def test_what_holds_a_forward_up(
    make_record: MakeRecord, device_ms: float | None, host_ms: float | None, kind: Kind
) -> None:
    assert make_record(latency_ms=2.0, device_ms=device_ms, host_ms=host_ms).outcome.kind is kind


def test_records_are_read_in_the_order_measured(
    make_record: MakeRecord, make_case: Callable[..., Case], tmp_path: Path
) -> None:
    for second, seq in enumerate([64, 16, 32]):
        stamp = f"2026-12-01T00:00:0{second}+00:00"
        records.write(make_record(make_case(seq=seq), started_at=stamp), tmp_path)
    read, _ = records.read_sweep(tmp_path)
    assert [record.case.seq for record in read] == [64, 16, 32]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": Status.OK, "reason": "but why"},
        {"status": Status.OOM},
        {"status": Status.OK},
    ],
    ids=["ok-with-a-reason", "oom-without", "nulls-without"],
)
def test_an_outcome_explains_itself(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Outcome(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", list(Status))
def test_which_outcomes_let_a_sweep_end_well(status: Status) -> None:
    assert status.expected is (status in ("ok", "oom", "unsupported"))

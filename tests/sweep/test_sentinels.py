"""Which case of a lane is its sentinel."""

from collections.abc import Callable

import pytest

from attnscale.case import Case
from attnscale.record import Record, Status
from attnscale.sweep.sentinels import Sentinels

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]


@pytest.fixture
def of(make_record: MakeRecord, make_case: MakeCase) -> Callable[..., Record]:
    def make(seq: int, *, power_w: float | None, latency_ms: float, took_s: int = 1) -> Record:
        record = make_record(make_case(seq=seq), latency_ms=latency_ms)
        metrics = record.outcome.metrics.model_copy(update={"power_w": power_w})
        return record.model_copy(
            update={
                "outcome": record.outcome.model_copy(update={"metrics": metrics}),
                "started_at": "2026-12-01T00:00:00+00:00",
                "ended_at": f"2026-12-01T00:00:{took_s:02}+00:00",
            }
        )

    return make


def chosen(*records: Record) -> list[int]:
    sentinels = Sentinels()
    for record in records:
        sentinels.consider(record)
    return [case.seq for case in sentinels.chosen()]


def test_the_one_that_draws_most_power(of: Callable[..., Record]) -> None:
    quiet, loud, long = (
        of(8, power_w=300.0, latency_ms=1.0),
        of(16, power_w=650.0, latency_ms=2.0),
        of(32, power_w=500.0, latency_ms=9.0),
    )
    assert chosen(quiet, loud, long) == [16]


def test_without_power_the_longest(of: Callable[..., Record]) -> None:
    assert chosen(of(8, power_w=None, latency_ms=1.0), of(16, power_w=None, latency_ms=2.0)) == [16]


def test_a_dear_case_only_where_there_is_no_cheap_one(of: Callable[..., Record]) -> None:
    dear = of(8, power_w=700.0, latency_ms=500.0, took_s=30)
    dearer = of(16, power_w=700.0, latency_ms=900.0, took_s=50)
    assert chosen(dear, of(32, power_w=100.0, latency_ms=1.0)) == [32]
    assert chosen(dearer, dear) == [8]


def test_a_case_without_a_number_is_none(make_record: MakeRecord) -> None:
    assert chosen(make_record(status=Status.OOM)) == []


def test_one_that_was_measured_again_stays(of: Callable[..., Record]) -> None:
    sentinels = Sentinels()
    sentinels.consider(of(8, power_w=300.0, latency_ms=1.0))
    assert [case.seq for case in sentinels.chosen()] == [8]
    sentinels.consider(of(16, power_w=600.0, latency_ms=1.0))
    assert [case.seq for case in sentinels.chosen()] == [8]

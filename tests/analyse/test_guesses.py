"""Guesses beside what was measured."""

from collections.abc import Callable

import pytest

from attnscale.analyse.guesses import Mismatch, mismatches
from attnscale.case import Case
from attnscale.manifest import Guess
from attnscale.record import Record, Status
from tests.evidence.profiles import profile

EARLY = "2026-11-30T00:00:00+00:00"


@pytest.fixture
def measured(
    make_record: Callable[..., Record], make_case: Callable[..., Case]
) -> Callable[..., Record]:
    def made(
        backend: str, latency_ms: float, *, guess_ms: float | None = None, seq: int = 1024
    ) -> Record:
        case = make_case(backend=backend, device="cuda", dtype="bfloat16", seq=seq, head_dim=64)
        record = make_record(case, latency_ms=latency_ms, device_ms=latency_ms * 0.9, host_ms=0.1)
        metrics = record.outcome.metrics.model_copy(update={"guess_device_ms": guess_ms})
        changes = {"profile": profile(backend), "metrics": metrics}
        return record.model_copy(update={"outcome": record.outcome.model_copy(update=changes)})

    return made


Measured = Callable[..., Record]


def only(found: list[Mismatch]) -> Mismatch:
    (one,) = found
    return one


def test_the_roofline_guesses_every_case(measured: Measured) -> None:
    found = mismatches([measured("math", 10.0, guess_ms=1.0), measured("flash", 2.0, guess_ms=1.0)], [])
    assert [one.factor for one in found] == [pytest.approx(9.0), pytest.approx(1.8)], "furthest first"
    assert (found[0].guessed, found[0].measured) == ("1 ms", "9 ms")
    assert found[0].explained is not None
    assert found[0].explained.name == "score matrix in memory"


def test_a_ratio(measured: Measured) -> None:
    records = [measured("math", 7.0), measured("naive_inplace", 2.5), measured("math", 9.0, seq=2048)]
    one = only(mismatches(records, [Guess(at=EARLY, ratio={"math/naive_inplace": 3.5})]))
    assert (one.guessed, one.measured) == ("3.5", "2.8")
    assert one.factor == pytest.approx(0.8)
    assert one.what == "math over naive_inplace at gpt-s1024-b2-h4-l2-bf16-cuda"


def test_the_fastest(measured: Measured) -> None:
    records = [measured("flash", 3.0), measured("cudnn", 2.0), measured("math", 9.0)]
    one = only(mismatches(records, [Guess(at=EARLY, fastest="flash")]))
    assert (one.guessed, one.measured) == ("flash", "cudnn")
    assert one.factor == pytest.approx(1.5)
    right = only(mismatches(records, [Guess(at=EARLY, fastest="cudnn")]))
    assert (right.factor, right.explained) == (1.0, None)


def test_kernels_of_a_call(measured: Measured) -> None:
    records = [measured("naive", 3.0), measured("math", 9.0)]
    found = mismatches(records, [Guess(at=EARLY, kernels={"naive": 6, "math": 20, "flash": 1})])
    assert {(one.guessed, one.measured) for one in found} == {("6", "5"), ("20", "8")}


def test_what_was_measured_before_the_guess_does_not_count(measured: Measured) -> None:
    records = [measured("flash", 3.0), measured("cudnn", 2.0)]
    assert mismatches(records, [Guess(at="2026-12-01T00:00:00.001+00:00", fastest="flash")]) == []


def test_what_did_not_end_ok_is_not_compared(
    measured: Measured, make_record: Callable[..., Record], make_case: Callable[..., Case]
) -> None:
    case = make_case(backend="math", device="cuda", dtype="bfloat16", seq=1024, head_dim=64)
    records = [measured("flash", 3.0), make_record(case, status=Status.OOM)]
    guess = Guess(at=EARLY, fastest="math", ratio={"math/flash": 3.0}, kernels={"math": 20})
    assert mismatches(records, [guess]) == []

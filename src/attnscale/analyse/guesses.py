"""Guess first, then look: where what was expected is furthest from what was measured.

Two kinds of guesses are on record before a case is timed: the roofline's, of every case on a GPU, that
its device time is what the card's measured peaks allow (guess_device_ms), and a user's own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnscale.evidence.categories import rows
from attnscale.evidence.findings import Finding, findings
from attnscale.manifest import Guess
from attnscale.record import Record, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A guess beside what was measured."""

    what: str
    guessed: str
    measured: str
    factor: float
    """Measured over guessed; for a backend, its time over that of the fastest."""
    explained: Finding | None
    """The dearest finding of the case that is slower than was thought."""

    @property
    def off(self) -> float:
        return abs(math.log(self.factor))


def mismatches(records: Sequence[Record], guesses: Sequence[Guess]) -> list[Mismatch]:
    """Every guess that could be compared, furthest off first."""
    ok = [record for record in records if record.outcome.status is Status.OK]
    made = [*_roofline(ok), *(one for guess in guesses for one in _users(ok, guess))]
    return sorted(made, key=lambda one: -one.off)


def _roofline(ok: Sequence[Record]) -> Iterator[Mismatch]:
    for record in ok:
        guessed, measured = record.outcome.metrics.guess_device_ms, record.outcome.metrics.device_ms
        if guessed and measured:
            yield Mismatch(
                what=f"device time of {record.slug}, by the roofline",
                guessed=f"{guessed:.4g} ms",
                measured=f"{measured:.4g} ms",
                factor=measured / guessed,
                explained=_dearest(record),
            )


def _users(ok: Sequence[Record], guess: Guess) -> Iterator[Mismatch]:
    later = [record for record in ok if record.started_at >= guess.at]
    for shape in _shapes(later):
        yield from _fastest(shape, guess)
        yield from _ratios(shape, guess)
        yield from _kernels(shape, guess)


def _fastest(shape: dict[str, Record], guess: Guess) -> Iterator[Mismatch]:
    if guess.fastest in shape and len(shape) > 1:
        best = min(shape.values(), key=_time_ms)
        thought = shape[guess.fastest]
        yield Mismatch(
            what=f"fastest at {_without_backend(best)}",
            guessed=guess.fastest,
            measured=best.case.backend,
            factor=_time_ms(thought) / _time_ms(best),
            explained=None if thought is best else _dearest(thought),
        )


def _ratios(shape: dict[str, Record], guess: Guess) -> Iterator[Mismatch]:
    for names, guessed in guess.ratio.items():
        slower, faster = names.split("/")
        if slower in shape and faster in shape:
            measured = _time_ms(shape[slower]) / _time_ms(shape[faster])
            yield Mismatch(
                what=f"{slower} over {faster} at {_without_backend(shape[slower])}",
                guessed=f"{guessed:.4g}",
                measured=f"{measured:.4g}",
                factor=measured / guessed,
                explained=_dearest(shape[slower if measured > guessed else faster]),
            )


def _kernels(shape: dict[str, Record], guess: Guess) -> Iterator[Mismatch]:
    for name, guessed in guess.kernels.items():
        record = shape.get(name)
        profile = record.outcome.profile if record else None
        if record and profile and record.case.device != "cpu":
            inside = [row for row in rows(profile) if row.in_attention and row.kernel.kind == "kernel"]
            measured = len(inside) / record.case.layers
            yield Mismatch(
                what=f"kernels of an attention call, {record.slug}",
                guessed=str(guessed),
                measured=f"{measured:.4g}",
                factor=max(measured, 1e-9) / guessed,
                explained=_dearest(record),
            )


def _shapes(records: Sequence[Record]) -> list[dict[str, Record]]:
    """Backend -> record, for each set of cases that differ in the backend alone."""
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        found.setdefault(_shape_key(record), {})[record.case.backend] = record
    return list(found.values())


def _shape_key(record: Record) -> str:
    fields = record.case_config()
    return repr(sorted((name, repr(value)) for name, value in fields.items() if name != "backend"))


def _without_backend(record: Record) -> str:
    return record.slug.replace(f"-{record.case.backend}-", "-", 1)


def _time_ms(record: Record) -> float:
    """What a caller waits."""
    latency = record.outcome.metrics.latency_ms
    assert latency is not None
    return latency


def _dearest(record: Record) -> Finding | None:
    """A finding that costs something; where none has a gain, the one that takes longest."""
    return max(findings(record), key=lambda one: (one.gain_ms or 0.0, one.us), default=None)

"""Sentinels: one case of each kind, measured again, so that noise and drift between runs are known.

The more power a case draws, the more the card's clock has to give: the one that draws most shows drift
first. It must be cheap to repeat; where NVML is silent the longest forward stands in.
"""

from datetime import datetime

from attnscale.case import Case
from attnscale.record import Kind, Record

_CHEAP_S = 10.0


class Sentinels:
    """Of one lane. A sentinel that was measured again stays."""

    def __init__(self) -> None:
        self._best: dict[Kind, Record] = {}
        self._kept: set[Kind] = set()

    def consider(self, record: Record) -> None:
        """A case that was just measured; one without a number can be none."""
        kind = record.outcome.kind
        if kind is None or kind in self._kept:
            return
        best = self._best.get(kind)
        if best is None or _fitness(record) > _fitness(best):
            self._best[kind] = record

    def chosen(self) -> list[Case]:
        """One of each kind; they are kept from now on."""
        self._kept |= set(self._best)
        return [record.case for record in self._best.values()]


def _fitness(record: Record) -> tuple[bool, float, float]:
    """Cheap before dear; then, of the cheap, power and length, and of the dear the shortest."""
    metrics, took_s = record.outcome.metrics, _took_s(record)
    if took_s > _CHEAP_S:
        return False, -took_s, 0.0
    return True, metrics.power_w or 0.0, metrics.latency_ms or 0.0


def _took_s(record: Record) -> float:
    began, ended = (datetime.fromisoformat(at) for at in (record.started_at, record.ended_at))
    return (ended - began).total_seconds()

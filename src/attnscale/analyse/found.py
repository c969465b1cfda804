"""Findings of a sweep: each name once, with the cases that bear it."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscale.evidence.categories import rows, unknown
from attnscale.evidence.findings import Finding, findings
from attnscale.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One kind of finding."""

    name: str
    cases: Sequence[tuple[Record, Finding]]
    """The one with most to gain first; then by time."""

    @property
    def first(self) -> Finding:
        return self.cases[0][1]


def found(records: Sequence[Record]) -> list[Found]:
    """The kinds with most to gain first."""
    kinds: dict[str, list[tuple[Record, Finding]]] = {}
    for record in records:
        for finding in findings(record):
            kinds.setdefault(finding.name, []).append((record, finding))
    made = [
        Found(name=name, cases=sorted(cases, key=lambda one: (-(one[1].gain_ms or 0.0), -one[1].us)))
        for name, cases in kinds.items()
    ]
    return sorted(made, key=lambda kind: -(kind.first.gain_ms or 0.0))


def unread(records: Sequence[Record]) -> list[str]:
    """A note on kernels that no rule of the categories knows."""
    names = list(
        dict.fromkeys(
            name
            for record in records
            if record.outcome.profile
            for name in unknown(rows(record.outcome.profile))
        )
    )
    if not names:
        return []
    shown = ", ".join(name[:80] for name in names[:5])
    return [f"{len(names)} kernels are of no known category and count as other: {shown}"]


def unproven(records: Sequence[Record]) -> list[str]:
    """A note on cases that are ok without a proof of what ran."""
    lost = [
        record
        for record in records
        if record.outcome.metrics.latency_ms is not None and record.outcome.backend_ran is None
    ]
    if not lost:
        return []
    why = list(dict.fromkeys(record.outcome.nulls["backend_ran"] for record in lost))
    return [f"which backend ran is not proven in {len(lost)} of {len(records)} cases: {'; '.join(why)}"]

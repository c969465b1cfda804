"""Two sweeps of the same cases: before and after an upgrade, on two cards, with two drivers.

A case is matched by its key, so that only what surrounds it differs. Its ratio is that of B over A, with
the interval of both runs and the noise between runs of both sweeps together. Where that noise is unknown
no difference is called one: minutes alone can move a case by more.
"""

import enum
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attnscale.analyse.noise import Noise, difference_seen
from attnscale.record import Environment, Record, Status

NARROW = 0.05
"""Half-width, natural log, up to which an interval around 1 says that two times are the same."""
_ENVIRONMENT = (
    "device_name",
    "driver",
    "cuda",
    "cudnn",
    "torch",
    "python",
    "flash_implementation",
    "host",
)


class Verdict(enum.StrEnum):
    """Of B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One case in both sweeps."""

    slug: str
    verdict: Verdict
    time: str
    """latency_ms, or device_ms where both have it: the steadier one, and free of the host."""
    a_ms: float
    b_ms: float
    half_width: float | None
    """Of the ratio's 95% interval, natural log; None where noise or an interval is unknown."""
    kernels: tuple[str, ...]
    """How the kernels of B differ: +2 NAME, -1 NAME."""

    @property
    def ratio(self) -> float:
        return self.b_ms / self.a_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All of two sweeps."""

    cases: Sequence[Compared]
    """That ended ok in both, the most slowed down first."""
    changed_outcomes: Sequence[str]
    """slug: outcome in A, outcome in B."""
    only_a: Sequence[str]
    only_b: Sequence[str]
    environment: Sequence[str]
    """name: in A, in B."""


def compare(a: Sequence[Record], noise_a: Noise, b: Sequence[Record], noise_b: Noise) -> Comparison:
    """Every case of either sweep is in the result once."""
    in_a, in_b = ({record.key: record for record in records} for records in (a, b))
    both = [(record, in_b[key]) for key, record in in_a.items() if key in in_b]
    ok = [pair for pair in both if all(one.outcome.status is Status.OK for one in pair)]
    others = [pair for pair in both if pair not in ok]
    cases = [_compared(one, noise_a, other, noise_b) for one, other in ok]
    return Comparison(
        cases=sorted(cases, key=lambda case: -case.ratio),
        changed_outcomes=[
            f"{one.slug}: {one.outcome.status}, {other.outcome.status}"
            for one, other in others
            if one.outcome.status is not other.outcome.status
        ],
        only_a=[record.slug for key, record in in_a.items() if key not in in_b],
        only_b=[record.slug for key, record in in_b.items() if key not in in_a],
        environment=_environment([r.environment for r in a], [r.environment for r in b]),
    )


def _compared(a: Record, noise_a: Noise, b: Record, noise_b: Noise) -> Compared:
    time = "device" if a.outcome.metrics.device_ms and b.outcome.metrics.device_ms else "latency"
    values = [getattr(one.outcome.metrics, f"{time}_ms") for one in (a, b)]
    half_widths = [_half_width(a, noise_a, time), _half_width(b, noise_b, time)]
    known = [half for half in half_widths if half is not None]
    together = math.hypot(*known) if len(known) == len(half_widths) else None
    ratio = values[1] / values[0]
    verdict = Verdict.UNCLEAR
    if together is not None and difference_seen(ratio, (together, 0.0)):
        verdict = Verdict.SLOWER if ratio > 1 else Verdict.FASTER
    elif together is not None and together <= NARROW:
        verdict = Verdict.SAME
    return Compared(
        slug=a.slug,
        verdict=verdict,
        time=f"{time}_ms",
        a_ms=values[0],
        b_ms=values[1],
        half_width=together,
        kernels=_changed_kernels(a, b),
    )


def _half_width(record: Record, noise: Noise, time: str) -> float | None:
    """Of one run, its own interval and the noise between runs together."""
    metrics = record.outcome.metrics
    low, high = (getattr(metrics, f"{time}_ci_{end}_ms") for end in ("low", "high"))
    between = noise.half_width(record, time)
    if low is None or high is None or not between:
        return None
    return math.hypot(math.log(high / low) / 2, between)


def _changed_kernels(a: Record, b: Record) -> tuple[str, ...]:
    profiles = a.outcome.profile, b.outcome.profile
    if profiles[0] is None or profiles[1] is None:
        return ()
    before, after = (
        Counter(profile.kernels[launch.kernel].name for launch in profile.launches)
        for profile in profiles
        if profile
    )
    changes = {name: after[name] - before[name] for name in before | after}
    return tuple(f"{count:+d} {name}" for name, count in changes.items() if count)


def _environment(a: Sequence[Environment], b: Sequence[Environment]) -> list[str]:
    lines = []
    for name in _ENVIRONMENT:
        sides = [", ".join(dict.fromkeys(str(getattr(one, name)) for one in some)) for some in (a, b)]
        if sides[0] != sides[1]:
            lines.append(f"{name}: {sides[0]} in A, {sides[1]} in B")
    return lines

"""The noise between runs: how far the same case, measured again, comes out elsewhere.

The interval of one run knows nothing of clocks, neighbours and order. A sweep therefore measures a
sentinel of each kind again (sweep/run.py). From those runs: the standard deviation of log time, pooled
over the sentinels of a kind, and the half-width of one run, Student's t at 95% times that. As logs are
taken, it is a fraction that fits a case of any length. Drift is the last run over the first.
"""

import itertools
import math
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from attnscale.record import Kind, Record

NOISE_NAME = "noise.json"
TIMES = ("latency", "device", "host")
"""Of each a record has ``<name>_ms`` and its interval."""


class Spread(BaseModel):
    """Of one metric of one kind of case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    half_width: float
    """Of the 95% interval of one run, natural log: 0.01 is about 1%."""
    drift: float
    """The last run over the first, less 1: geometric mean over the sentinels."""
    sentinels: int
    runs: int
    """Of all sentinels together."""


class Noise(BaseModel):
    """Kind of case -> latency, device or host -> spread. What is absent is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by_kind: dict[Kind, dict[str, Spread]] = {}

    def half_width(self, record: Record, time: str) -> float:
        """Of one run of such a case, natural log; 0 where it is unknown."""
        kind = record.outcome.kind
        spread = self.by_kind.get(kind, {}).get(time) if kind else None
        return spread.half_width if spread else 0.0


def measured_noise(records: Sequence[Record], repeats: Sequence[Record]) -> Noise:
    """From the cases measured more than once on one device, their first run included."""
    again = {record.key for record in repeats}
    runs = [one for one in (*records, *repeats) if one.key in again and one.outcome.kind]
    runs.sort(key=lambda run: (run.key, str(run.environment.gpu_uuid), run.started_at))
    groups = itertools.groupby(runs, lambda run: (run.key, run.environment.gpu_uuid))
    by_kind: dict[Kind, list[list[Record]]] = {}
    for group in (list(group) for _, group in groups):
        kind = group[0].outcome.kind
        if kind and len(group) > 1:
            by_kind.setdefault(kind, []).append(group)
    return Noise(by_kind={kind: _spreads(groups) for kind, groups in by_kind.items()})


def difference_seen(ratio: float, half_widths: tuple[float, float]) -> bool:
    """Whether two times of that ratio are apart, given the half-width of each, natural log."""
    return abs(math.log(ratio)) > math.hypot(*half_widths)


def in_words(noise: Noise) -> list[str]:
    """A note a kind: what one run is worth, and how far the card drifted."""
    return [
        f"noise between runs of {kind} cases, from {spread.runs} runs of {_sentinels(spread)}: "
        + ", ".join(_spread_in_words(time, one) for time, one in spreads.items())
        for kind, spreads in noise.by_kind.items()
        if (spread := spreads.get("latency"))
    ]


def _spreads(groups: Sequence[Sequence[Record]]) -> dict[str, Spread]:
    found = {}
    for time in TIMES:
        logs = [
            [math.log(value) for run in group if (value := getattr(run.outcome.metrics, f"{time}_ms"))]
            for group in groups
        ]
        logs = [group for group in logs if len(group) > 1]
        if logs:
            found[time] = _spread(logs)
    return found


def _spread(logs: Sequence[Sequence[float]]) -> Spread:
    from scipy.stats import t

    means = [sum(group) / len(group) for group in logs]
    squares = sum((x - mean) ** 2 for group, mean in zip(logs, means, strict=True) for x in group)
    freedom = sum(len(group) - 1 for group in logs)
    drift = sum(group[-1] - group[0] for group in logs) / len(logs)
    return Spread(
        half_width=float(t.ppf(0.975, freedom)) * math.sqrt(squares / freedom),
        drift=math.expm1(drift),
        sentinels=len(logs),
        runs=sum(len(group) for group in logs),
    )


def _sentinels(spread: Spread) -> str:
    return "1 case" if spread.sentinels == 1 else f"{spread.sentinels} cases"


def _spread_in_words(time: str, spread: Spread) -> str:
    return f"{time} ±{math.expm1(spread.half_width):.2%} (drift {spread.drift:+.2%})"


def widened(
    value: float | None, ends: tuple[float | None, float | None], half_width: float
) -> tuple[float | None, float | None]:
    """The ends of a run's own interval, with the noise between runs added in quadrature, as logs."""
    low, high = ends
    if not value or not low or not high:
        return None, None
    down, up = math.log(value / low), math.log(high / value)
    return (
        value * math.exp(-math.hypot(down, half_width)),
        value * math.exp(math.hypot(up, half_width)),
    )

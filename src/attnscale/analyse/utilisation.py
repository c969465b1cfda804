"""How well a forward used its card, from its record alone: ratios, none of which can pass 1.

All are of device_ms, the card's own time, so that a card that waits for launches is not called
inefficient; ``host_over_device`` says how far it waits.

- mfu, hfu: useful and executed FLOP/s over the datasheet's peak (Chowdhery et al., PaLM, appendix B;
  Korthikanti et al., Reducing Activation Recomputation, for the executed kind).
- mamfu, mamfu_executed: the same over the fastest matrix product measured on this card (Bekman,
  Machine Learning Engineering, "Maximum Achievable Matmul FLOPS").
- mbu: the fewest bytes of the forward, over what a measured copy moves in that time.
"""

from collections.abc import Mapping, Sequence

from attnscale.analyse.datasheet import datasheet
from attnscale.record import Kind, Record

RATIOS: Mapping[str, str] = {
    "mfu": "useful FLOPs over the datasheet's peak",
    "hfu": "executed FLOPs over the datasheet's peak",
    "mamfu": "useful FLOPs over this card's measured matmul",
    "mamfu_executed": "executed FLOPs over this card's measured matmul",
    "mbu": "least traffic over this card's measured copy",
}
"""Name -> what it is."""


def utilisation(record: Record) -> dict[str, float | bool | None]:
    """``launch_bound``, ``host_over_device`` and every one of RATIOS; None where a part is unknown."""
    metrics, costs = record.outcome.metrics, record.costs
    seconds = None if metrics.device_ms is None else metrics.device_ms / 1e3
    card = datasheet(record.environment.device_name)
    peak = card.flops_per_s.get(record.case.dtype) if card else None
    useful, executed = costs.useful_flops, costs.executed_flops
    kind = record.outcome.kind
    return {
        "launch_bound": kind is Kind.LAUNCH_BOUND
        if kind in (Kind.LAUNCH_BOUND, Kind.GPU_BOUND)
        else None,
        "host_over_device": _over(metrics.host_ms, metrics.device_ms),
        "mfu": _over(useful, peak, seconds),
        "hfu": _over(executed, peak, seconds),
        "mamfu": _over(useful, metrics.matmul_flops_per_s, seconds),
        "mamfu_executed": _over(executed, metrics.matmul_flops_per_s, seconds),
        "mbu": _over(costs.min_bytes, metrics.copy_bytes_per_s, seconds),
    }


def impossible(records: Sequence[Record]) -> list[str]:
    """A note for each ratio that passed 1 somewhere: a fault of the measurement, not a fast card."""
    notes = []
    for name, what in RATIOS.items():
        found = [(value, one.slug) for one in records if (value := utilisation(one)[name]) and value > 1]
        if found:
            most, slug = max(found)
            notes.append(
                f"{name} ({what}) is above 100% in {len(found)} of {len(records)} cases, {most:.1%} in "
                f"{slug}: no card can do that, so a time, a count or a peak here is wrong, which is a "
                "fault of attnscale; do not use these cases"
            )
    return notes


def _over(amount: float | None, *limits: float | None) -> float | None:
    if amount is None:
        return None
    for limit in limits:
        if not limit:
            return None
        amount /= limit
    return amount

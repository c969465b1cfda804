"""How many cards a deep model needs, and how deep one card goes, from predicted bytes."""

import math
from collections.abc import Sequence

from attnscale.analyse.depth import Prediction, Series

CARDS_GB = (80, 141, 192)
"""Memory of the cards asked about, 10^9 bytes: H100, H200, B200."""


def cards_needed(weights: float, activations: float, card_bytes: float) -> int | None:
    """Weights split evenly, all activations on each. None when the activations alone do not fit."""
    room = card_bytes - activations
    return math.ceil(weights / room) if room > 0 else None


def deepest(peak: Prediction, card_bytes: int) -> int:
    """Layers whose tensors fit the card, by the line of peak_allocated_bytes."""
    return max(0, math.floor((card_bytes - peak.intercept) / peak.slope))


def in_words(series: Series, made: Sequence[Prediction]) -> list[str]:
    """Cards, and the frontier of this one beside the depths that did run out."""
    by_name = {one.quantity: one for one in made}
    lines = []
    weights, activations = (
        by_name.get(f"{name}_bytes") for name in ("weights_allocated", "activations_peak")
    )
    if weights and activations:
        counted = []
        for size in CARDS_GB:
            cards = cards_needed(weights.value, activations.value, size * 1e9)
            counted.append(f"{'more than any number' if cards is None else cards} of {size} GB")
        lines.append(
            f"cards for {weights.layers} layers: {', '.join(counted)} "
            "(weights split evenly, every card with all activations)"
        )
    memory = series.records[-1].environment.gpu_memory_bytes
    peak = by_name.get("peak_allocated_bytes")
    if memory and peak and peak.slope > 0:
        ran_out = ", ".join(map(str, series.out_of_memory))
        seen = f"; {ran_out} layers did run out here" if ran_out else ""
        lines.append(
            f"this card runs out beyond {deepest(peak, memory)} layers, by what tensors hold{seen}"
        )
    return lines

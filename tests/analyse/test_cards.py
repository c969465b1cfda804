"""Cards for a deep model, and how deep a card goes."""

from collections.abc import Callable

import pytest

from attnscale.analyse.cards import cards_needed, in_words
from attnscale.analyse.depth import all_series, predict
from attnscale.analyse.noise import Noise
from attnscale.case import Case
from attnscale.record import Record, Status
from tests.conftest import ENVIRONMENT

GB = 10**9


@pytest.mark.parametrize(
    ("weights", "activations", "card", "count"),
    [
        (79, 1, 80, 1),
        (80, 1, 80, 2),
        (141, 2, 80, 2),
        (141, 2, 141, 2),
        (10, 80, 80, None),
        (0.1, 0, 80, 1),
    ],
)
def test_cards_needed(weights: float, activations: float, card: float, count: int | None) -> None:
    assert cards_needed(weights * GB, activations * GB, card * GB) == count


def test_a_ladder_says_how_many_cards_and_how_deep_this_one_goes(
    make_record: Callable[..., Record], make_case: Callable[..., Case]
) -> None:
    card = ENVIRONMENT.model_copy(update={"gpu_memory_bytes": 100 * GB})

    def at(layers: int) -> Record:
        case = make_case(device="cuda", layers=layers)
        record = make_record(case, device_ms=1.0 * layers, host_ms=0.1, environment=card)
        held = {"weights_allocated_bytes": layers * 2 * GB, "activations_peak_bytes": GB}
        held |= {"peak_allocated_bytes": layers * 2 * GB + GB}
        metrics = record.outcome.metrics.model_copy(update=held)
        return record.model_copy(
            update={"outcome": record.outcome.model_copy(update={"metrics": metrics})}
        )

    oom = make_record(make_case(device="cuda", layers=80), status=Status.OOM, environment=card)
    (series,) = all_series([at(1), at(2), at(4), at(8), oom])
    assert in_words(series, predict(series, 80, Noise())) == [
        "cards for 80 layers: 3 of 80 GB, 2 of 141 GB, 1 of 192 GB "
        "(weights split evenly, every card with all activations)",
        "this card runs out beyond 49 layers, by what tensors hold; 80 layers did run out here",
    ]

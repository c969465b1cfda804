"""MFU and its kin, against arithmetic by hand."""

from collections.abc import Callable

import pytest

from attnscale.analyse.datasheet import datasheet
from attnscale.analyse.utilisation import RATIOS, impossible, utilisation
from attnscale.case import Case
from attnscale.record import Record

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]


@pytest.fixture
def on_h200(make_record: MakeRecord, make_case: MakeCase) -> Callable[..., Record]:
    """1 ms on the device, 0.4 and 0.5 TFLOP, 2 GB."""

    def make(**measured: float) -> Record:
        record = make_record(make_case(dtype="bfloat16", device="cuda"), device_ms=1.0, host_ms=0.5)
        peaks = {"matmul_flops_per_s": 8e14, "copy_bytes_per_s": 4e12} | measured
        metrics = record.outcome.metrics.model_copy(update=peaks)
        costs = {"useful_flops": 4 * 10**11, "executed_flops": 5 * 10**11, "min_bytes": 2 * 10**9}
        return record.model_copy(
            update={
                "outcome": record.outcome.model_copy(update={"metrics": metrics}),
                "costs": record.costs.model_copy(update=costs),
                "environment": record.environment.model_copy(update={"device_name": "NVIDIA H200"}),
            }
        )

    return make


def test_every_ratio_is_of_device_time(on_h200: Callable[..., Record]) -> None:
    found = utilisation(on_h200())
    assert found["mfu"] == pytest.approx(400 / 989)
    assert found["hfu"] == pytest.approx(500 / 989)
    assert found["mamfu"] == pytest.approx(0.5)
    assert found["mamfu_executed"] == pytest.approx(0.625)
    assert found["mbu"] == pytest.approx(0.5)
    assert found["launch_bound"] is False
    assert found["host_over_device"] == 0.5


def test_what_is_unknown_is_null(make_record: MakeRecord) -> None:
    assert set(utilisation(make_record()).values()) == {None}
    on_unlisted = utilisation(make_record(device_ms=1.0, host_ms=2.0))
    assert on_unlisted["mfu"] is None
    assert on_unlisted["launch_bound"] is True
    assert on_unlisted["host_over_device"] == 2.0


def test_above_100_per_cent_is_called_a_fault_of_ours(on_h200: Callable[..., Record]) -> None:
    assert impossible([on_h200()]) == []
    (note,) = impossible([on_h200(), on_h200(matmul_flops_per_s=4.5e14)])
    assert note.startswith("mamfu_executed")
    assert "1 of 2 cases, 111.1%" in note
    assert "fault of attnscale" in note


def test_ratios_are_the_ones_that_are_computed(on_h200: Callable[..., Record]) -> None:
    assert set(RATIOS) == set(utilisation(on_h200())) - {"launch_bound", "host_over_device"}


def test_a_card_is_known_by_its_exact_name() -> None:
    h200 = datasheet("NVIDIA H200")
    assert h200 is not None
    assert h200.flops_per_s == {"float16": 989e12, "bfloat16": 989e12, "float32": 67e12}
    assert "https://" in h200.source
    assert datasheet("NVIDIA H200 MIG 1g.18gb") is None
    t4 = datasheet("Tesla T4")
    assert t4 is not None
    assert "bfloat16" not in t4.flops_per_s

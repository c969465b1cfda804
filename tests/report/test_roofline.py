"""The roofline read back: marks are the records, roofs what the card measured and its datasheet says."""

from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from attnscale.analyse.frame import frame
from attnscale.case import Case
from attnscale.record import Costs, Record, Status
from attnscale.report import plots
from attnscale.report.plan import plan_figures
from tests.conftest import ENVIRONMENT

H200 = ENVIRONMENT.model_copy(update={"device_name": "NVIDIA H200"})
MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]


@pytest.fixture
def on_gpu(make_record: MakeRecord, make_case: MakeCase) -> MakeRecord:
    """A record with ``useful`` FLOPs, ``device_ms`` and the peaks of its card."""

    def made(useful: int, device_ms: float, *, peaks: bool = True, **changes: Any) -> Record:
        case = make_case(**{"backend": "flash", "dtype": "bfloat16"} | changes)
        record = make_record(case, device_ms=device_ms, host_ms=0.1, environment=H200)
        costs = Costs(
            params=1, weight_bytes=2, useful_flops=useful, executed_flops=2 * useful, min_bytes=10**9
        )
        known = {"matmul_flops_per_s": 800e12, "copy_bytes_per_s": 4e12} if peaks else {}
        metrics = record.outcome.metrics.model_copy(update=known)
        outcome = record.outcome.model_copy(update={"metrics": metrics})
        return record.model_copy(update={"costs": costs, "outcome": outcome})

    return made


def roofline(*records: Record) -> Canvas:
    (plan,) = [plan for plan in plan_figures(frame(records)) if plan.name == "roofline"]
    return plots.draw(plan)


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def marks(canvas: Canvas, panel: int = 0) -> set[tuple[float, float]]:
    return {
        (round(x, 6), round(y, 6))
        for line in canvas.axes[panel].get_lines()
        if line.get_linestyle() == "None"
        for x, y in points(line)
    }


def roofs(canvas: Canvas) -> dict[str, list[float]]:
    return {
        str(line.get_label()): [round(y) for _, y in points(line)]
        for line in canvas.axes[0].get_lines()
        if line.get_linestyle() != "None"
    }


def test_a_mark_is_the_work_of_a_record_over_its_device_time(on_gpu: MakeRecord) -> None:
    canvas = roofline(on_gpu(10**12, 2.0, seq=16), on_gpu(4 * 10**12, 10.0, seq=32))
    assert marks(canvas) == {(1000, 500), (4000, 400)}


def test_a_stroke_leads_up_to_the_executed_work(on_gpu: MakeRecord) -> None:
    (strokes,) = roofline(on_gpu(10**12, 4.0)).axes[0].collections
    ((low, high),) = strokes.get_segments()  # type: ignore[attr-defined]
    assert [*low, *high] == pytest.approx([1000, 250, 1000, 500])


def test_roofs_are_what_was_measured_and_the_datasheets(on_gpu: MakeRecord) -> None:
    found = roofs(roofline(on_gpu(10**12, 2.0)))
    assert found["measured on this card"][1:] == [800, 800]
    assert found["datasheet"][1:] == [989, 989]
    assert found["datasheet"][0] / found["measured on this card"][0] == pytest.approx(4.8 / 4, rel=0.01)


def test_an_unmeasured_roof_is_not_drawn(on_gpu: MakeRecord) -> None:
    canvas = roofline(on_gpu(10**12, 2.0, peaks=False))
    assert set(roofs(canvas)) == {"datasheet"}
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()] == ["flash", "datasheet"]


def test_each_dtype_has_its_panel_and_roofs(on_gpu: MakeRecord) -> None:
    canvas = roofline(on_gpu(10**12, 2.0), on_gpu(10**12, 20.0, dtype="float32"))
    titles = [ax.get_title() for ax in canvas.axes]
    assert titles == ["dtype = bfloat16", "dtype = float32"]
    assert (marks(canvas, 0), marks(canvas, 1)) == ({(1000, 500)}, {(1000, 50)})


def test_shapes_are_named_where_one_stands_alone(on_gpu: MakeRecord) -> None:
    named = roofline(on_gpu(10**12, 2.0, seq=16), on_gpu(2 * 10**12, 2.0, seq=32))
    assert [text.get_text() for text in named.axes[0].texts] == ["seq 16", "seq 32"]
    shared = roofline(on_gpu(10**12, 2.0, seq=16), on_gpu(10**12, 2.0, seq=32))
    assert list(shared.axes[0].texts) == []


def test_what_is_not_on_it_is_counted(
    on_gpu: MakeRecord, make_record: MakeRecord, make_case: MakeCase
) -> None:
    oom = make_record(make_case(backend="math", dtype="bfloat16"), status=Status.OOM, environment=H200)
    canvas = roofline(on_gpu(10**12, 2.0), oom)
    assert "not drawn: 1 oom (math 1)" in canvas.get_supxlabel()


def test_a_cpu_has_none(make_record: MakeRecord) -> None:
    assert not [plan for plan in plan_figures(frame([make_record()])) if plan.name == "roofline"]

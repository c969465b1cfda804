"""Where the time goes, read back from the bars."""

from collections.abc import Callable

import pytest
from matplotlib.figure import Figure as Canvas

from attnscale.analyse.frame import frame
from attnscale.case import Case
from attnscale.record import Record, Status
from attnscale.report import plots
from attnscale.report.plan import BARS_A_FIGURE, Shares, plan_figures
from tests.evidence.profiles import profile

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]


@pytest.fixture
def profiled(make_record: MakeRecord, make_case: MakeCase) -> MakeRecord:
    def made(backend: str, **changes: object) -> Record:
        record = make_record(make_case(backend=backend, **changes))
        outcome = record.outcome.model_copy(update={"profile": profile(backend)})
        return record.model_copy(update={"outcome": outcome})

    return made


def shares(*records: Record) -> dict[str, Shares]:
    plans = plan_figures(frame(records))
    return {plan.name: plan for plan in plans if isinstance(plan, Shares)}


def bars(canvas: Canvas) -> dict[str, list[float]]:
    """Part -> its share in each bar, from the top."""
    (ax,) = canvas.axes
    return {
        str(container.get_label()): [round(bar.get_width(), 6) for bar in container]
        for container in ax.containers
    }


def test_a_bar_is_divided_by_the_time_of_its_kernels(profiled: MakeRecord) -> None:
    plans = shares(profiled("flash"), profiled("naive"))
    found = bars(plots.draw(plans["time_by_category"]))
    total = {name: sum(one.us for one in profile(name).launches) for name in ("flash", "naive")}
    assert found["attention"] == [round(20 / total["flash"], 6), 0.0]
    assert found["memcpy"] == [0.0, round(24 / total["naive"], 6)]
    assert "embedding" not in found, "what took nothing anywhere is not in the legend"
    by_part = bars(plots.draw(plans["time_by_part"]))
    assert by_part["head"] == [round(10 / total[name], 6) for name in ("flash", "naive")]
    for name in ("time_by_category", "time_by_part"):
        drawn = bars(plots.draw(plans[name])).values()
        assert [sum(column) for column in zip(*drawn, strict=True)] == pytest.approx([1, 1], abs=1e-5)


def test_a_bar_says_which_case_how_long_and_how_many(profiled: MakeRecord) -> None:
    plan = shares(profiled("flash", seq=16), profiled("flash", seq=32))["time_by_category"]
    (ax,) = plots.draw(plan).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["flash 16", "flash 32"]
    assert [text.get_text() for text in ax.texts] == ["0.098 ms, 13"] * 2


def test_cases_without_kernels_are_counted(profiled: MakeRecord, make_record: MakeRecord) -> None:
    plans = shares(profiled("flash"), make_record(status=Status.OOM), make_record())
    assert "not drawn: 2 cases without kernels" in plans["time_by_part"].caption


def test_many_cases_are_several_figures(profiled: MakeRecord) -> None:
    many = [profiled("flash", seq=seq) for seq in range(1, BARS_A_FIGURE + 2)]
    plans = shares(*many)
    assert {"time_by_part_1", "time_by_part_2"} <= set(plans)
    assert sum(len(plan.rows) for name, plan in plans.items() if "part" in name) == len(many)

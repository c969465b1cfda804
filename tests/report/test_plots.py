"""Figures read back: what is on them is what was measured, and what is not is counted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas

from attnscale.analyse.frame import frame
from attnscale.case import BACKENDS, Case
from attnscale.record import Record, Status
from attnscale.report import plots
from attnscale.report.plan import Plan, plan_figures
from attnscale.report.plots.looks import palette

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]
SEQS = (1024, 2048, 4096)


def drawn(records: Sequence[Record], *names: str) -> dict[str, Canvas]:
    """The figures of these names, or all; drawn as they are, saved nowhere."""
    plans = plan_figures(frame(records))
    return {plan.name: plots.draw(plan) for plan in plans if not names or plan.name in names}


def panels(canvas: Canvas) -> list[Axes]:
    return [ax for ax in canvas.axes if ax.get_visible()]


def points(line: Any) -> list[tuple[float, float]]:
    """Matplotlib types a line's data as anything at all."""
    return [
        (float(x), round(float(y), 9)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def caption(canvas: Canvas) -> str:
    return " ".join(canvas.get_supxlabel().split())


@pytest.fixture
def sweep(make_record: MakeRecord, make_case: MakeCase) -> list[Record]:
    """Two batches; math is out of memory at the longest, cudnn never runs."""
    records = []
    for batch in (1, 4):
        for seq in SEQS:
            for backend, slow in (("flash", 1.0), ("math", 4.0), ("cudnn", 0.0)):
                status = Status.OK if slow else Status.UNSUPPORTED
                if backend == "math" and seq == 4096:
                    status = Status.OOM
                made = make_record(
                    make_case(backend=backend, seq=seq, batch=batch),
                    status=status,
                    latency_ms=slow * batch * seq / 512,
                    peak_allocated_bytes=2**30 * seq // 1024,
                )
                records.append(made)
    return records


def test_a_figure_for_each_axis_and_metric_as_png_and_svg(sweep: list[Record], tmp_path: Path) -> None:
    figures = plots.draw_all(frame(sweep), tmp_path)
    expected = {f"{what}_by_{x}" for what in ("latency", "tokens", "memory") for x in ("seq", "batch")}
    assert {figure.path.name for figure in figures} == expected
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{ending}" for name in expected for ending in ("png", "svg")
    }
    assert all("flash, math, cudnn" in figure.alt for figure in figures)


def test_lines_are_the_records_and_nothing_is_averaged(sweep: list[Record]) -> None:
    canvas = drawn(sweep, "latency_by_seq")["latency_by_seq"]
    backend_of = {to_hex(color): name for name, color in palette().items()}
    found = {
        (ax.get_title(), backend_of[to_hex(line.get_color())], *point)
        for ax in panels(canvas)
        for line in ax.get_lines()
        for point in points(line)
    }
    assert found == {
        (f"batch = {r.case.batch}", r.case.backend, r.case.seq, round(r.outcome.metrics.latency_ms, 9))
        for r in sweep
        if r.outcome.metrics.latency_ms is not None
    }


def test_intervals_are_those_of_the_records(sweep: list[Record]) -> None:
    canvas = drawn(sweep, "latency_by_seq")["latency_by_seq"]
    found = {
        (round(float(low[1]), 9), round(float(high[1]), 9))
        for ax in panels(canvas)
        for strokes in ax.collections
        for low, high in strokes.get_segments()  # type: ignore[attr-defined]
    }
    expected = {
        (round(metrics.latency_ci_low_ms, 9), round(metrics.latency_ci_high_ms, 9))
        for metrics in (record.outcome.metrics for record in sweep)
        if metrics.latency_ci_low_ms is not None and metrics.latency_ci_high_ms is not None
    }
    assert found == expected


def test_memory_is_in_gib(sweep: list[Record]) -> None:
    canvas = drawn(sweep, "memory_by_seq")["memory_by_seq"]
    assert canvas.get_supylabel() == "peak memory allocated (GiB)"
    (flash, *_) = panels(canvas)[0].get_lines()
    assert points(flash) == [(1024, 1.0), (2048, 2.0), (4096, 4.0)]


@pytest.mark.parametrize(
    "values",
    [(1024, 2048, 4096), (1024, 4096), (1000, 1024, 65536), tuple(range(1, 9)), (8, 12, 16, 32)],
    ids=["powers", "two", "close", "linear", "heads"],
)
def test_ticks_are_the_swept_values_in_plain_digits(
    make_record: MakeRecord, make_case: MakeCase, values: tuple[int, ...]
) -> None:
    made = [make_record(make_case(seq=seq), latency_ms=float(seq)) for seq in values]
    canvas = drawn(made, "latency_by_seq")["latency_by_seq"]
    canvas.draw_without_rendering()
    (ax,) = panels(canvas)
    shown = [label.get_text() for label in ax.get_xticklabels(which="both")]
    assert list(ax.get_xticks()) == list(values)
    # Where two would overlap the later one stays blank.
    assert shown == ["" if values[0] == 1000 and value == 1024 else str(value) for value in values]
    assert not any("10^" in label.get_text() for label in ax.get_yticklabels(which="both"))


def test_the_legend_lists_exactly_the_swept_backends(sweep: list[Record]) -> None:
    (legend,) = drawn(sweep, "latency_by_seq")["latency_by_seq"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["flash", "math", "cudnn (no result)"]


def test_a_backend_looks_the_same_whatever_else_is_swept(
    make_record: MakeRecord, make_case: MakeCase
) -> None:
    looks: dict[str, set[tuple[object, ...]]] = {}
    for names in (BACKENDS, BACKENDS[4:], ("cudnn", "flash")):
        made = [make_record(make_case(backend=name, seq=seq)) for name in names for seq in (16, 32)]
        (legend,) = drawn(made, "latency_by_seq")["latency_by_seq"].legends
        for line in legend.get_lines():
            look = (line.get_color(), line.get_marker(), str(line._unscaled_dash_pattern))  # type: ignore[attr-defined]
            looks.setdefault(str(line.get_label()), set()).add(look)
    assert all(len(found) == 1 for found in looks.values())
    for part in zip(*(next(iter(found)) for found in looks.values()), strict=True):
        assert len(set(part)) == len(BACKENDS), "colour, marker and dash each tell all backends apart"


def test_what_has_no_number_is_marked_at_its_place_and_counted(sweep: list[Record]) -> None:
    canvas = drawn(sweep, "latency_by_seq")["latency_by_seq"]
    canvas.draw_without_rendering()
    ax = panels(canvas)[0]
    to_x = ax.transAxes + ax.transData.inverted()
    crosses = {
        (round(float(to_x.transform(mark.xy)[0])), to_hex(mark.get_color()))  # type: ignore[attr-defined]
        for mark in ax.texts
        if mark.get_text() == "×"
    }
    of = {name: to_hex(color) for name, color in palette().items()}
    assert crosses == {(4096, of["math"]), *((seq, of["cudnn"]) for seq in SEQS)}
    assert sorted(texts(ax)) == ["oom", "unsupported", "×", "×", "×", "×"]
    assert "not drawn: 2 oom (math 2); 6 unsupported (cudnn 6)" in caption(canvas)


def test_marks_of_two_backends_at_one_place_do_not_hide_each_other(
    make_record: MakeRecord, make_case: MakeCase
) -> None:
    made = [make_record(make_case(seq=seq)) for seq in (16, 32)]
    made += [
        make_record(make_case(seq=32, backend=name), status=Status.OOM) for name in ("math", "flash")
    ]
    canvas = drawn(made, "latency_by_seq")["latency_by_seq"]
    heights = [mark.xyann for mark in panels(canvas)[0].texts if mark.get_text() == "×"]  # type: ignore[attr-defined]
    assert len(set(heights)) == 2


def test_one_shape_is_bars_with_a_row_for_what_failed(
    make_record: MakeRecord, make_case: MakeCase
) -> None:
    records = [
        make_record(make_case(backend="naive"), status=Status.OOM),
        make_record(make_case(backend="flash"), latency_ms=3.0),
        make_record(make_case(backend="math"), status=Status.FAILED),
        make_record(make_case(backend="cudnn"), latency_ms=1.0),
    ]
    (ax,) = panels(drawn(records, "latency_by_backend")["latency_by_backend"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["naive", "flash", "math", "cudnn"]
    assert ax.get_ylim() == (3.5, -0.5), "every row is within the panel"
    assert texts(ax) == ["oom", "3", "failed", "1"]
    assert sorted(bar.get_width() for bar in ax.patches) == [1.0, 3.0]  # type: ignore[attr-defined]


def test_a_facet_of_bars_where_nothing_ran_keeps_its_rows(
    make_record: MakeRecord, make_case: MakeCase
) -> None:
    records = [make_record(make_case(backend=name)) for name in ("flash", "math")]
    records.append(make_record(make_case(backend="flash", dtype="bfloat16"), status=Status.CRASHED))
    empty, full = panels(drawn(records, "latency_by_backend")["latency_by_backend"])
    assert (empty.get_title(), texts(empty)) == ("dtype = bfloat16", ["crashed", "not asked for"])
    assert texts(full) == ["2", "2"]


def test_one_case_is_one_bar(make_record: MakeRecord) -> None:
    (ax,) = panels(drawn([make_record()], "latency_by_backend")["latency_by_backend"])
    assert texts(ax) == ["2"]


def test_a_metric_that_nobody_has_gets_no_figure(make_record: MakeRecord, make_case: MakeCase) -> None:
    cpu = [make_record(make_case(seq=seq)) for seq in SEQS]
    assert {plan.name for plan in plan_figures(frame(cpu))} == {"latency_by_seq", "tokens_by_seq"}
    failed = [make_record(make_case(seq=seq), status=Status.OOM) for seq in SEQS]
    assert plan_figures(frame(failed)) == []


def test_too_many_facets_become_several_figures_and_none_is_dropped(
    make_record: MakeRecord, make_case: MakeCase
) -> None:
    many = [make_record(make_case(seq=seq, batch=batch)) for seq in (16, 32) for batch in range(1, 16)]
    many.append(make_record(make_case(seq=16, batch=1, backend="math"), status=Status.OOM))
    drawn_plans = [plan for plan in plan_figures(frame(many)) if isinstance(plan, Plan)]
    plans = [plan for plan in drawn_plans if plan.name.startswith("latency_by_seq")]
    assert [plan.name for plan in plans] == ["latency_by_seq_1", "latency_by_seq_2"]
    titles = [panel.title for plan in plans for panel in plan.panels]
    assert titles == [f"batch = {batch}" for batch in range(1, 16)]
    assert ["not drawn" in " ".join(plan.caption) for plan in plans] == [True, False]
    last = plots.draw(plans[1])
    assert len(panels(last)) == 3


@pytest.mark.parametrize(
    "label", ["$x^{", r"\frac", "<b>&amp;", "line\nbreak", "bell\x07\x1b[31m", "模型 🚀", "long " * 40]
)
def test_any_label_can_be_drawn(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path, label: str
) -> None:
    from xml.etree import ElementTree

    made = [make_record(make_case(model=label, backend=name)) for name in ("naive", "math")]
    (figure, _) = plots.draw_all(frame(made), tmp_path)
    ElementTree.parse(figure.path.with_suffix(".svg"))


def test_an_svg_is_the_same_at_every_build_whatever_the_users_style(
    sweep: list[Record], tmp_path: Path
) -> None:
    table = frame(sweep[:9])
    svgs = []
    users: list[dict[Any, Any]] = [{}, {"axes.facecolor": "black", "font.size": 20}]
    for number, style in enumerate(users):
        folder = tmp_path / str(number)
        folder.mkdir()
        with matplotlib.rc_context(style):
            before = dict(matplotlib.rcParams)
            plots.draw_all(table, folder)
            assert dict(matplotlib.rcParams) == before
        svgs.append((folder / "latency_by_seq.svg").read_text())
    assert svgs[0] == svgs[1]
    assert ">1024</text>" in svgs[0], "text as text"

"""Kernels as a table, findings of a sweep, and where the time goes."""

from collections.abc import Callable

import pytest

from attnscale.analyse.found import found, unproven, unread
from attnscale.analyse.frame import frame
from attnscale.analyse.kernels import kernel_frame
from attnscale.analyse.where import OUTSIDE, PARTS, idle_us, part
from attnscale.case import Case
from attnscale.evidence.categories import rows
from attnscale.record import Record, Status
from tests.evidence.profiles import CORES, FLASH, Writer, profile

MakeCase = Callable[..., Case]


@pytest.fixture
def profiled(make_record: Callable[..., Record], make_case: MakeCase) -> Callable[..., Record]:
    def made(backend: str, **changes: object) -> Record:
        shape = {"device": "cuda", "dtype": "bfloat16", "seq": 1024, "head_dim": 64} | changes
        record = make_record(make_case(backend=backend, **shape), device_ms=1.9, host_ms=0.5)
        ran = {"profile": profile(backend), "backend_ran": backend}
        return record.model_copy(update={"outcome": record.outcome.model_copy(update=ran)})

    return made


def test_a_row_a_kernel_and_part_dearest_first(profiled: Callable[..., Record]) -> None:
    table = kernel_frame([profiled("cudnn"), profiled("naive")])
    assert list(table["backend"].unique()) == ["cudnn", "naive"]
    cudnn = table[(table["backend"] == "cudnn") & (table["category"] == "attention")].iloc[0]
    assert (cudnn["count"], cudnn["us"], cudnn["launch_us"]) == (2, 12.0, 8.0)
    assert (cudnn["occupancy_raw"], cudnn["occupancy"], cudnn["limited_by"]) == (0, 0.125, "registers")
    assert (cudnn["grid"], cudnn["block"], cudnn["part"]) == ("8x128x1", "128x1x1", "attention")
    naive = table[table["backend"] == "naive"]
    assert list(naive["us"]) == sorted(naive["us"], reverse=True)
    products = naive[naive["category"] == "GEMM"]
    assert set(products["gemm_units"]) == {"Tensor Cores"}
    assert set(products["part"]) == {"attention", "attention's projections", "MLP", "head"}


def test_no_microsecond_is_lost(profiled: Callable[..., Record]) -> None:
    records = [profiled(name) for name in CORES]
    rows, kernels = frame(records), kernel_frame(records)
    for record, row in zip(records, rows.to_dict("records"), strict=True):
        total = sum(one.us for one in profile(record.case.backend).launches)
        assert row["kernel_ms"] == pytest.approx(total / 1e3)
        for ending in ("_kernels_us", "in_"):
            parts = [v for n, v in row.items() if str(n).endswith(ending) or str(n).startswith(ending)]
            assert sum(parts) == pytest.approx(total)
        assert kernels[kernels["key"] == record.key]["us"].sum() == pytest.approx(total)
    around = 2 * 5 + 1  # norm, three products and gelu a layer; the head
    assert list(rows["memcpys"]) == [2, 0, 0, 0, 0, 0]
    of_attention = [2 * len(core) for core in CORES.values()]
    assert list(rows["kernels"] + rows["memcpys"]) == [around + count for count in of_attention]
    assert list(rows["kernels_a_layer"]) == [5 + len(core) for core in CORES.values()]


@pytest.mark.parametrize(
    ("intervals", "idle"),
    [([(0, 10)], 0), ([(0, 10), (10, 5)], 0), ([(0, 10), (15, 5), (30, 1)], 15), ([(0, 10), (5, 2)], 0),
     ([(0, 100), (10, 5), (120, 1)], 20)],
    ids=["one", "touching", "gaps", "within", "long-one"],
)  # fmt: skip
def test_idle_is_what_no_kernel_covers(intervals: list[tuple[float, float]], idle: float) -> None:
    writer = Writer()
    for _ in intervals:
        writer.add(FLASH, "head", "", 1)
    known = writer.profile()
    moved = [
        launch._replace(at_us=at, us=us)
        for launch, (at, us) in zip(known.launches, intervals, strict=True)
    ]
    assert idle_us(rows(known.model_copy(update={"launches": moved}))) == idle


def test_a_case_without_kernels_has_nulls(make_record: Callable[..., Record]) -> None:
    (row,) = frame([make_record()]).to_dict("records")
    assert row["kernels"] is None or row["kernels"] != row["kernels"]
    assert kernel_frame([make_record()]).empty


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("layers.3.attention.core", "attention"),
        ("layers.3.attention", "attention's projections"),
        ("layers.3.attention.qkv", "attention's projections"),
        ("layers.11.mlp.down", "MLP"),
        ("layers.3.mlp", "MLP"),
        ("layers.3.attention_norm", "norms"),
        ("norm", "norms"),
        ("embedding", "embedding"),
        ("positions", "embedding"),
        ("head", "head"),
        ("layers.3", "residuals"),
        ("", OUTSIDE),
        ("something.else", OUTSIDE),
    ],
)
def test_part(module: str, name: str) -> None:
    assert part(module) == name
    assert name in (*PARTS, OUTSIDE)


def test_findings_are_grouped_the_dearest_first(profiled: Callable[..., Record]) -> None:
    records = [profiled("naive"), profiled("naive", seq=2048), profiled("math")]
    kinds = found(records)
    by_name = {kind.name: kind for kind in kinds}
    assert len(by_name["hidden Memcpy"].cases) == 2
    assert kinds[0].first.gain_ms == max(kind.first.gain_ms or 0 for kind in kinds)


def test_what_is_not_proven_is_said(
    profiled: Callable[..., Record], make_record: Callable[..., Record]
) -> None:
    assert unproven([profiled("flash"), make_record(status=Status.OOM)]) == []
    (note,) = unproven([profiled("flash"), make_record()])
    assert note == "which backend ran is not proven in 1 of 2 cases: not profiled"


def test_unknown_kernels_are_listed(profiled: Callable[..., Record]) -> None:
    assert unread([profiled("flash")]) == []
    writer = Writer()
    writer.add(FLASH, "layers.0.attention.core", "", 1)
    writer.add("frobnicate_v7", "head", "", 1)
    record = profiled("flash")
    odd = record.model_copy(
        update={"outcome": record.outcome.model_copy(update={"profile": writer.profile()})}
    )
    assert unread([odd]) == ["1 kernels are of no known category and count as other: frobnicate_v7"]

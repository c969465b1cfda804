"""Each finding where it holds, and not where it does not."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from attnscale.case import Case
from attnscale.evidence.findings import Finding, findings
from attnscale.profile import Profile
from attnscale.record import Record, Status
from tests.evidence.profiles import COPY, CORES, FFMA, MUL, Writer, profile

MakeRecord = Callable[..., Record]


@pytest.fixture
def found(make_record: MakeRecord, make_case: Callable[..., Case]) -> Callable[..., dict[str, Finding]]:
    def of(backend: str, what: Profile, **changes: Any) -> dict[str, Finding]:
        times = {"latency_ms": 2.0, "device_ms": 1.9, "host_ms": 0.5}
        times |= {name: changes.pop(name) for name in tuple(changes) if name.endswith("_ms")}
        first_ms = times.pop("first_call_ms", 3.0)
        shape = {"backend": backend, "dtype": "bfloat16", "device": "cuda", "seq": 1024, "head_dim": 64}
        record = make_record(make_case(**shape | changes), **times)
        metrics = record.outcome.metrics.model_copy(update={"first_call_ms": first_ms})
        outcome = record.outcome.model_copy(update={"profile": what, "metrics": metrics})
        every = findings(record.model_copy(update={"outcome": outcome}))
        assert len({finding.name for finding in every}) == len(every)
        return {finding.name: finding for finding in every}

    return of


Found = Callable[..., dict[str, Finding]]

ONLY = {
    "hidden Memcpy": {"naive"},
    "fp32 upcast on CUDA cores": {"math"},
    "mask rebuilt every call": {"math"},
    "safe softmax": {"math"},
    "score matrix in memory": {"naive", "naive_inplace", "math"},
    "transposes and copies around attention": {"math"},
    "low occupancy, on purpose": {"efficient", "flash", "cudnn"},
}


@pytest.mark.parametrize("backend", CORES)
@pytest.mark.parametrize("name", ONLY)
def test_a_backend_has_its_findings_and_no_others(found: Found, name: str, backend: str) -> None:
    assert (name in found(backend, profile(backend))) == (backend in ONLY[name])


def test_a_finding_rests_on_kernels_counts_and_microseconds(found: Found) -> None:
    finding = found("naive", profile("naive"))["hidden Memcpy"]
    assert finding.kernels == ("Memcpy DtoD (Device -> Device)",)
    assert (finding.count, finding.us) == (2, 24.0)
    assert finding.gain == "gains at most 0.024 ms a forward"
    assert "masked_fill_" in finding.advice


def test_what_takes_next_to_nothing_is_no_finding(found: Found) -> None:
    assert "hidden Memcpy" not in found("naive", profile("naive", linear_us=5000))


def test_an_fp32_forward_is_not_upcast(found: Found) -> None:
    assert "fp32 upcast on CUDA cores" not in found("math", profile("math"), dtype="float32")


def test_without_a_causal_mask_none_is_rebuilt(found: Found) -> None:
    assert "mask rebuilt every call" not in found("math", profile("math"), causal=False)


def test_a_score_matrix_smaller_than_its_inputs_is_no_finding(found: Found) -> None:
    assert "score matrix in memory" not in found("naive", profile("naive"), seq=16)


def test_copies_before_attention_are_named(found: Found) -> None:
    copies = [(COPY, "aten::contiguous > aten::clone > aten::copy_", 5)]
    finding = found("flash", profile("flash", also=copies))["transposes and copies around attention"]
    assert (finding.count, finding.us) == (2, 10.0)


@pytest.mark.parametrize(("length", "expected"), [(2, False), (3, True), (4, True)])
def test_a_chain_is_three_elementwise_kernels_in_a_row(
    found: Found, length: int, expected: bool
) -> None:
    chain = [(MUL, "aten::mul", 6.0)] * length
    every = found("flash", profile("flash", also=chain))
    assert ("unfused elementwise chain" in every) is expected
    if expected:
        gain = 2 * 6.0 * (length - 1) / 1e3
        assert every["unfused elementwise chain"].gain_ms == pytest.approx(gain)


def test_a_chain_does_not_reach_across_modules(found: Found) -> None:
    writer = Writer()
    for module in ("layers.0.mlp", "layers.0", "layers.1.mlp"):
        writer.add(MUL, module, "aten::mul", 5)
    assert "unfused elementwise chain" not in found("flash", writer.profile())


def test_launch_bound_is_measured(found: Found) -> None:
    finding = found("flash", profile("flash"), latency_ms=2.0, device_ms=0.5, host_ms=1.8)[
        "launch-bound"
    ]
    assert finding.gain == "gains 1.5 ms a forward"
    assert finding.count == 13
    assert "launch-bound" not in found("flash", profile("flash"))


def test_a_raw_zero_is_said_to_be_a_given_up_estimate(found: Found) -> None:
    cudnn = found("cudnn", profile("cudnn"))["low occupancy, on purpose"]
    assert "0 means that it gave up" in cudnn.advice
    assert cudnn.gain == ""
    flash = found("flash", profile("flash"))["low occupancy, on purpose"]
    assert "12% of the warps fit (the profiler says 12%), limited by registers" in flash.advice


@pytest.mark.parametrize(
    ("backend", "first_call_ms", "expected"),
    [("cudnn", 60.0, True), ("cudnn", 4.0, False), ("flash", 60.0, False)],
)
def test_plans_are_cudnns(found: Found, backend: str, first_call_ms: float, expected: bool) -> None:
    every = found(backend, profile(backend), first_call_ms=first_call_ms)
    assert ("cuDNN's plans cost the first call" in every) is expected


@pytest.mark.parametrize(("linear_us", "expected"), [(10, True), (1, False)])
def test_matrix_products_dominate_or_not(found: Found, linear_us: float, expected: bool) -> None:
    every = found("flash", profile("flash", linear_us=linear_us * 2))
    assert ("matrix products dominate" in every) is expected
    if expected:
        assert every["matrix products dominate"].gain_ms == pytest.approx(0.020)


def _fp32(kernels: Sequence[str]) -> Profile:
    writer = Writer()
    for name in kernels:
        writer.add(name, "layers.0.mlp.up", "aten::linear > aten::addmm", 50)
    return writer.profile()


def test_tf32_off_is_of_float32_on_cuda_cores(found: Found) -> None:
    tf32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16"
    assert "TF32 is off" in found("flash", _fp32([FFMA]), dtype="float32")
    assert "TF32 is off" not in found("flash", _fp32([tf32]), dtype="float32")
    assert "TF32 is off" not in found("flash", _fp32([FFMA]), dtype="bfloat16")


def test_a_case_without_kernels_has_none(make_record: MakeRecord) -> None:
    assert findings(make_record()) == []
    assert findings(make_record(status=Status.OOM)) == []

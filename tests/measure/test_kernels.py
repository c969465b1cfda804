"""The profiled pass, against torch's own table of the same pass."""

import functools
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attnscale.case import Case
from attnscale.evidence import backend, categories
from attnscale.evidence.trace import TraceLost
from attnscale.measure import attention, kernels
from attnscale.measure.forward import measure
from attnscale.measure.model import build_model, random_tokens
from attnscale.profile import Profile
from attnscale.record import Status

MakeCase = Callable[..., Case]


def profiled(case: Case, keep: Path | None = None, forward_ms: float = 1.0) -> Profile:
    attend = attention.build(case)
    model = build_model(case, attend)
    forward = functools.partial(model, random_tokens(case))
    with torch.inference_mode(), attend.pinned():
        forward()
        return kernels.profiled(model, forward, case.device, forward_ms=forward_ms, keep=keep)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """torch's own averages of each pass that a test profiles."""
    seen: list[Any] = []

    class Kept(torch.profiler.profile):
        def __exit__(self, *args: Any) -> None:
            super().__exit__(*args)  # type: ignore[no-untyped-call]
            seen.append(self.key_averages())

    monkeypatch.setattr(kernels, "profile", Kept)
    return seen


def own_table(table: Any, device: str) -> Counter[str]:
    """Name -> times in one forward, of what a Profile holds as well."""
    kind = "CPU" if device == "cpu" else "CUDA"
    return Counter(
        {
            one.key: one.count // kernels.STEPS
            for one in table
            if one.device_type.name == kind and not one.is_user_annotation
            if one.key.startswith("aten::") or kind == "CUDA"
        }
    )


@pytest.mark.parametrize("name", ["naive", "naive_inplace", "math", "flash", "auto"])
@pytest.mark.parametrize("arch", ["gpt", "llama"])
def test_counts_are_those_of_torchs_own_table(
    make_case: MakeCase, tables: list[Any], name: str, arch: str
) -> None:
    profile = profiled(make_case(backend=name, arch=arch))
    counted = Counter(profile.kernels[one.kernel].name for one in profile.launches)
    assert counted == own_table(tables[0], "cpu")


@pytest.mark.parametrize("name", ["naive", "naive_inplace", "math", "flash"])
def test_what_was_asked_for_is_what_ran(make_case: MakeCase, name: str) -> None:
    outcome = measure(make_case(backend=name))
    assert (outcome.status, outcome.backend_ran) == (Status.OK, name)
    assert measure(make_case(backend="auto")).backend_ran == "flash"


def test_every_piece_of_work_has_its_module(make_case: MakeCase) -> None:
    profile = profiled(make_case(layers=3))
    paths = {module for module in profile.modules if module.count(".") <= 2}
    for layer in range(3):
        parts = {"attention_norm", "attention", "attention.core", "attention.qkv", "mlp_norm", "mlp"}
        assert {f"layers.{layer}.{part}" for part in parts} <= set(profile.modules)
    assert {"embedding", "norm", "head"} <= paths
    rows = categories.rows(profile)
    assert categories.unknown(rows) == []
    named = [row for row in rows if row.category is categories.Category.GEMM]
    assert all(row.module for row in named)


def test_another_backend_than_asked_for_is_a_mismatch(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    math = attention.build(make_case(backend="math"))
    monkeypatch.setattr(attention.Attention, "pinned", lambda _: math_alone())
    outcome = measure(make_case(backend="flash"))
    assert math.backend == "math"
    assert outcome.status is Status.MISMATCH
    assert "asked for flash, and math ran" in str(outcome.reason)
    assert outcome.metrics.latency_ms is None
    assert outcome.profile is not None


def math_alone() -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.MATH])


def test_a_lost_trace_costs_the_proof_and_no_time(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> Any:
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS\nmore")

    monkeypatch.setattr(kernels, "profile", broken)
    outcome = measure(case)
    assert outcome.status is Status.OK
    assert outcome.metrics.latency_ms is not None
    assert outcome.nulls["profile"] == "the profiler failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"
    assert outcome.nulls["backend_ran"] == outcome.nulls["profile"]


def test_a_trace_over_the_cap_is_lost(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_MOST_BYTES", 2**10)
    with pytest.raises(TraceLost, match="MiB, and 0 is most"):
        profiled(case)


def test_broken_json_is_lost(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_: object, __: str, path: Path, *___: object) -> None:
        path.write_text('{"traceEvents": [{"name": "a "quote""}]}')

    monkeypatch.setattr(kernels, "_export", write)
    with pytest.raises(TraceLost, match="no valid JSON"):
        profiled(case)


def test_labels_are_sanitised() -> None:
    assert kernels.label('layers.0.a"b/c') == "attnscale/layers.0.a_b_c"


def test_a_kept_trace_is_the_one_that_was_read(case: Case, tmp_path: Path) -> None:
    profile = profiled(case, tmp_path / "case")
    assert profile.trace_file == "forward.pt.trace.json.gz"
    with gzip.open(tmp_path / "case" / profile.trace_file) as file:
        trace = json.load(file)
    assert sum(event.get("name") == "attnscale.step" for event in trace["traceEvents"]) == kernels.STEPS


@pytest.mark.parametrize(("forward_ms", "steps"), [(1.0, 3), (500.0, 2)])
def test_a_long_forward_is_profiled_twice(case: Case, forward_ms: float, steps: int) -> None:
    assert profiled(case, forward_ms=forward_ms).steps == steps


def test_hooks_and_ranges_are_gone_afterwards(case: Case) -> None:
    attend = attention.build(case)
    model = build_model(case, attend)
    with kernels.ranges(model):
        assert any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    layers = [module for module in model.modules() if type(module).__name__ == "SelfAttention"]
    assert {layer.attend for layer in layers} == {attend.attend}


def test_a_range_is_closed_when_the_forward_fails(case: Case) -> None:
    class Broken(nn.Module):
        def forward(self) -> None:
            raise ValueError("no")

    model = nn.Sequential(Broken())
    with kernels.ranges(model), pytest.raises(ValueError, match="no"):
        model[0]()


gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BACKENDS = ("naive", "naive_inplace", "math", "efficient", "flash", "cudnn")


class TestOnAGpu:
    pytestmark = gpu

    @pytest.fixture
    def on_gpu(self, make_case: MakeCase) -> Callable[..., Case]:
        shape = {"device": "cuda", "dtype": "bfloat16", "heads": 16, "head_dim": 64, "batch": 4}
        return lambda **changes: make_case(**shape | {"seq": 1024, "vocab": 8192} | changes)

    @pytest.mark.parametrize("name", BACKENDS)
    def test_counts_are_those_of_torchs_own_table(
        self, on_gpu: Callable[..., Case], tables: list[Any], name: str
    ) -> None:
        profile = profiled(on_gpu(backend=name))
        counted = Counter(profile.kernels[one.kernel].name for one in profile.launches)
        # The table also has what the warm-up left queued: one forward more, at most.
        table = own_table(tables[0], "cuda")
        assert counted.keys() == table.keys()
        assert all(counted[key] <= table[key] <= counted[key] * 4 // 3 + 1 for key in counted)

    @pytest.mark.parametrize("arch", ["gpt", "llama"])
    @pytest.mark.parametrize("name", BACKENDS)
    def test_what_was_asked_for_is_what_ran(
        self, on_gpu: Callable[..., Case], name: str, arch: str
    ) -> None:
        profile = profiled(on_gpu(backend=name, arch=arch))
        rows = categories.rows(profile)
        assert backend.ran(rows, causal=True) == name
        assert categories.unknown(rows) == []
        assert profile.limits is not None
        assert {row.module for row in rows} >= {"head", "layers.1.attention.core"}

    def test_kernels_sum_to_device_ms(self, on_gpu: Callable[..., Case]) -> None:
        outcome = measure(on_gpu(backend="flash", batch=8, layers=4))
        assert outcome.profile is not None
        assert outcome.metrics.device_ms is not None
        total_ms = sum(one.us for one in outcome.profile.launches) / 1e3
        assert total_ms == pytest.approx(outcome.metrics.device_ms, rel=0.05)

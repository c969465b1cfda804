"""docs/claims.md from the records: what public profiles claim, tested on this card.

    python benchmarks/claims.py ONE_OP.json FOLDER [FOLDER ...] > docs/claims.md

ONE_OP.json is one_op.py's. The folders are those of sweeps of whole forwards, on the same card: one at
the published shape (sweeps=seed_table), one of naive and naive_inplace over layers=8,80, one over seq.
A claim that these can't test is said to be untested.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscale.analyse.where import by_part, part
from attnscale.evidence.categories import Category, Row, gemm, rows
from attnscale.evidence.occupancy import occupancy
from attnscale.profile import Profile
from attnscale.record import Record, Status, read_sweep

PUBLISHED = {
    "naive": ("5 + 1 Memcpy", "-", "-", "-"),
    "naive_inplace": ("5", "1955", "-", "-"),
    "math": ("20", "7239", "-", "-"),
    "efficient": ("1", "277.9", "-", "-"),
    "flash": ("1", "146.8", "138", "13%"),
    "cudnn": ("1", "186.3", "214", "0%"),
}
"""Of one attention call on an A100-SXM4-80GB at batch 8, 16 heads of 64, 1024 tokens, bfloat16, causal:
kernels, GPU time in µs, CPU time in µs, occupancy as the profiler says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One attention call of one backend."""

    device_us: float
    host_us: float
    first_call_ms: float
    latency_ms: float
    profile: Profile
    rows: Sequence[Row]

    @property
    def kernels(self) -> list[Row]:
        return [row for row in self.rows if row.kernel.kind == "kernel"]

    @property
    def memcpys(self) -> list[Row]:
        return [row for row in self.rows if row.kernel.kind == "memcpy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that the claims are tested on."""

    device_name: str
    torch: str
    calls: dict[str, Call]
    records: Sequence[Record]

    def forwards(self, **axes: object) -> dict[str, Record]:
        """Backend -> the forward with these axes."""
        return {
            record.case.backend: record
            for record in self.records
            if all(getattr(record.case, name) == value for name, value in axes.items())
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim, and what became of it here."""

    text: str
    verdict: str
    """confirmed, refuted, depends or untested."""
    because: str


SHAPE = {"seq": 1024, "batch": 8, "heads": 16, "head_dim": 64, "layers": 8}


def main() -> None:
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("one_op", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    arguments = parser.parse_args()
    evidence = read(arguments.one_op, arguments.folders)
    print("\n".join(document(evidence)))


def read(one_op: Path, folders: Sequence[Path]) -> Evidence:
    raw = json.loads(one_op.read_text())
    records = [record for folder in folders for record in read_sweep(folder)[0]]
    return Evidence(
        device_name=raw["environment"]["device_name"],
        torch=raw["environment"]["torch"],
        calls={name: _call(call) for name, call in raw["calls"].items()},
        records=[record for record in records if record.outcome.status is Status.OK],
    )


def _call(raw: dict[str, Any]) -> Call:
    profile = Profile.model_validate(raw["profile"])
    return Call(
        device_us=raw["device_ms"] * 1e3,
        host_us=raw["host_ms"] * 1e3,
        first_call_ms=raw["first_call_ms"],
        latency_ms=raw["latency_ms"],
        profile=profile,
        rows=rows(profile),
    )


def document(evidence: Evidence) -> Iterator[str]:
    """The lines of claims.md."""
    yield "# Public claims, tested"
    yield ""
    yield f"On one {evidence.device_name}, torch {evidence.torch}. Made from the records by"
    yield "`python benchmarks/claims.py`; commands and records: [results](results/README.md)."
    yield ""
    yield "## One attention call: published on an A100, and here"
    yield ""
    yield from one_call(evidence)
    yield ""
    yield "## The same shape in a whole forward of 8 layers"
    yield ""
    yield from whole_forward(evidence)
    yield ""
    yield "## Claims"
    yield ""
    yield "| claim | here | because |"
    yield "|---|---|---|"
    for test in CLAIMS:
        claim = test(evidence)
        yield f"| {claim.text} | **{claim.verdict}** | {claim.because} |"


def one_call(evidence: Evidence) -> Iterator[str]:
    theirs = "published: kernels | GPU, µs | CPU, µs | occupancy"
    yield f"| backend | kernels | GPU, µs | CPU, µs | occupancy, raw | recomputed | {theirs} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, call in evidence.calls.items():
        count = f"{len(call.kernels)}" + (f" + {len(call.memcpys)} Memcpy" if call.memcpys else "")
        raw, recomputed = _occupancies(call)
        ours = f"{count} | {call.device_us:.4g} | {call.host_us:.3g} | {raw} | {recomputed}"
        yield f"| `{name}` | {ours} | {' | '.join(PUBLISHED[name])} |"


def _occupancies(call: Call) -> tuple[str, str]:
    """Of the kernel that takes longest."""
    longest = max(call.kernels, key=lambda row: row.us)
    raw = longest.kernel.occupancy_raw
    known = occupancy(longest.kernel, call.profile.limits) if call.profile.limits else None
    return "-" if raw is None else f"{raw:.0%}", "-" if known is None else f"{known.theoretical:.1%}"


def whole_forward(evidence: Evidence) -> Iterator[str]:
    kernels = "kernels' sum over device | attention's share | with a module"
    yield f"| backend | kernels | a layer | device, ms | host, ms | {kernels} |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, record in evidence.forwards(**SHAPE).items():
        profile, metrics = record.outcome.profile, record.outcome.metrics
        if profile is None or not metrics.device_ms or not metrics.host_ms:
            continue
        found = rows(profile)
        total = sum(row.us for row in found)
        inside = sum(row.module.startswith("layers.") for row in found) / record.case.layers
        named = sum(bool(row.module) for row in found)
        share = by_part(found)["attention"] / total
        ratio = total / 1e3 / metrics.device_ms
        times = f"{metrics.device_ms:.4g} | {metrics.host_ms:.3g}"
        kernels = f"{ratio:.3f} | {share:.1%} | {named} of {len(found)}"
        yield f"| `{name}` | {len(found)} | {inside:.4g} | {times} | {kernels} |"


def math_is_slower(evidence: Evidence) -> Claim:
    text = "math is 3.7x slower than hand-written attention and launches 20 kernels"
    math, naive = evidence.calls["math"], evidence.calls["naive_inplace"]
    ratio, count = math.device_us / naive.device_us, len(math.kernels)
    verdict = "confirmed" if abs(ratio / 3.7 - 1) < 0.1 and count == 20 else "depends"
    return Claim(
        text=text,
        verdict=verdict if ratio > 1.2 else "refuted",
        because=f"{ratio:.2f}x and {count} kernels in one call; "
        + _over(evidence, "math", "naive_inplace"),
    )


def naive_has_five(evidence: Evidence) -> Claim:
    counts = {name: len(evidence.calls[name].kernels) for name in ("naive", "naive_inplace")}
    return Claim(
        text="hand-written attention launches 5 kernels",
        verdict="confirmed" if set(counts.values()) == {5} else "depends",
        because=", ".join(f"{name} {count}" for name, count in counts.items())
        + f"; {_a_layer(evidence, 'naive_inplace')} in each layer of a model, whose Q, K, V are views",
    )


def hidden_memcpy(evidence: Evidence) -> Claim:
    copies = evidence.calls["naive"].memcpys
    without = evidence.calls["naive_inplace"].memcpys
    gains = []
    for layers in (8, 80):
        deep = evidence.forwards(**SHAPE | {"layers": layers})
        times = [deep[n].outcome.metrics.device_ms for n in ("naive", "naive_inplace") if n in deep]
        if len(times) == 2 and all(times):
            gains.append(f"{times[0] - times[1]:.3g} ms of {times[0]:.4g} over {layers} layers")  # type: ignore[operator]
    us = sum(row.us for row in copies)
    return Claim(
        text="an out-of-place masked_fill hides a Memcpy",
        verdict="confirmed" if copies and not without else "refuted",
        because=f"{len(copies)} Memcpy of {us:.3g} µs in one call, {len(without)} with masked_fill_; "
        f"removing it gains {'; '.join(gains) or 'an amount that was not measured'}",
    )


def upcast(evidence: Evidence) -> Claim:
    call = evidence.calls["math"]
    products = [row for row in call.kernels if row.category is Category.GEMM]
    slow = [row for row in products if gemm(row.kernel.name).units == "CUDA cores"]
    share = sum(row.us for row in slow) / sum(row.us for row in call.rows)
    return Claim(
        text="math upcasts bfloat16 to fp32 and multiplies on CUDA cores",
        verdict="confirmed" if slow and len(slow) == len(products) else "refuted",
        because=f"{len(slow)} of {len(products)} products, {share:.0%} of the call: {_names(slow)}",
    )


def mask_rebuilt(evidence: Evidence) -> Claim:
    call = evidence.calls["math"]
    masks = [row for row in call.rows if row.category is Category.MASK]
    us = sum(row.us for row in masks)
    return Claim(
        text="math rebuilds its mask in every call",
        verdict="confirmed" if any("tril" in row.op for row in masks) else "refuted",
        because=f"{len(masks)} kernels, {us:.3g} µs, "
        f"{us / sum(row.us for row in call.rows):.1%} of the call",
    )


def safe_softmax(evidence: Evidence) -> Claim:
    call = evidence.calls["math"]
    inside = [row for row in call.rows if "_safe_softmax" in row.op]
    beside = [row for row in inside if "softmax" not in row.kernel.name.lower()]
    us = sum(row.us for row in beside)
    return Claim(
        text="math pays for a safe softmax",
        verdict="confirmed" if beside else "refuted",
        because=f"{len(beside)} kernels beside the softmax, {us:.3g} µs, "
        f"{us / sum(row.us for row in call.rows):.0%} of the call",
    )


def flash_occupancy(evidence: Evidence) -> Claim:
    call = evidence.calls["flash"]
    raw, recomputed = _occupancies(call)
    fastest = min(evidence.calls, key=lambda name: evidence.calls[name].device_us)
    same = len(call.kernels) == 1 and recomputed in ("12.5%", "13%")
    return Claim(
        text="flash is one kernel at 13% occupancy and the fastest",
        verdict="confirmed" if same and fastest == "flash" else "depends",
        because=f"{len(call.kernels)} kernel, {raw} raw and {recomputed} recomputed; "
        f"fastest here: {fastest}",
    )


def cudnn_occupancy(evidence: Evidence) -> Claim:
    raw, recomputed = _occupancies(evidence.calls["cudnn"])
    return Claim(
        text="cuDNN runs at 0% occupancy",
        verdict="refuted" if raw == "0%" and recomputed != "-" else "depends",
        because=f"{raw} is the profiler's, which gives up above 48 KiB of shared memory; "
        f"recomputed: {recomputed}",
    )


def cudnn_cpu(evidence: Evidence) -> Claim:
    cudnn, flash = evidence.calls["cudnn"].host_us, evidence.calls["flash"].host_us
    return Claim(
        text="cuDNN needs more CPU time a call than flash",
        verdict="confirmed" if cudnn > 1.05 * flash else "refuted",
        because=f"{cudnn:.3g} µs and {flash:.3g} µs to launch one call",
    )


def no_transposes(evidence: Evidence) -> Claim:
    forwards = evidence.forwards(**SHAPE)
    counts = {
        name: [row for row in rows(forwards[name].outcome.profile) if _copies(row)]  # type: ignore[arg-type]
        for name in ("flash", "cudnn")
        if name in forwards and forwards[name].outcome.profile
    }
    if len(counts) < 2:
        return _untested("cuDNN needs no transposes")
    said = ", ".join(f"{name} {len(found)}" for name, found in counts.items())
    none = not counts["cudnn"]
    return Claim(
        text="cuDNN needs no transposes",
        verdict="confirmed" if none else "refuted",
        because=f"copies around attention in 8 layers: {said}"
        + ("; nor does flash" if none and not counts["flash"] else ""),
    )


def _copies(row: Row) -> bool:
    around = part(row.module) in ("attention", "attention's projections")
    return around and row.category in (Category.COPY, Category.MEMCPY)


def own_kernels(evidence: Evidence) -> Claim:
    names: dict[str, set[int]] = {}
    for record in evidence.records:
        if record.case.backend == "cudnn" and record.outcome.profile:
            for row in rows(record.outcome.profile):
                if row.category is Category.ATTENTION:
                    names.setdefault(row.kernel.name, set()).add(record.case.seq)
    if not names:
        return _untested("cuDNN generates kernels for each problem")
    shapes = set().union(*names.values())
    return Claim(
        text="cuDNN generates kernels for each problem",
        verdict="confirmed" if len(names) > 1 else "depends",
        because=f"{len(names)} attention kernels over seq {', '.join(map(str, sorted(shapes)))}",
    )


def cudnn_gain(evidence: Evidence) -> Claim:
    ratio = evidence.calls["flash"].device_us / evidence.calls["cudnn"].device_us
    return Claim(
        text="cuDNN is 1.5 to 2x faster than flash, the default before it",
        verdict="confirmed" if 1.5 <= ratio <= 2 else "depends" if ratio > 1 else "refuted",
        because=f"{ratio:.2f}x in one call; {_over(evidence, 'flash', 'cudnn')}",
    )


def gemms_dominate(evidence: Evidence) -> Claim:
    record = evidence.forwards(**SHAPE).get("flash")
    if record is None or record.outcome.profile is None:
        return _untested("with a fused kernel matrix products dominate")
    found = rows(record.outcome.profile)
    total = sum(row.us for row in found)
    products = sum(row.us for row in found if row.category is Category.GEMM) / total
    fused = sum(row.us for row in found if row.category is Category.ATTENTION) / total
    return Claim(
        text="with a fused kernel matrix products dominate",
        verdict="confirmed" if products > 0.5 else "refuted",
        because=f"{products:.0%} in matrix products and {fused:.0%} in flash, over 8 layers",
    )


def which_for_what(evidence: Evidence) -> Claim:
    text = "flash for long sequences, cuDNN for diverse shapes, math only for debugging"
    by_seq: dict[int, dict[str, Record]] = {}
    for record in evidence.records:
        if record.case.model.startswith("llama"):
            by_seq.setdefault(record.case.seq, {})[record.case.backend] = record
    whole = {s: r for s, r in by_seq.items() if {"flash", "cudnn", "math"} <= set(r)}
    if not whole:
        return _untested(text)
    said, firsts = [], []
    for seq, found in sorted(whole.items()):
        flash, cudnn, math = (found[n].outcome.metrics.latency_ms for n in ("flash", "cudnn", "math"))
        assert flash is not None
        assert cudnn is not None
        assert math is not None
        said.append(f"at {seq} flash {flash / cudnn:.2f} and math {math / cudnn:.2f} times cudnn")
        first = found["cudnn"].outcome.metrics.first_call_ms
        firsts.append((first or 0.0) - cudnn)
    longest = whole[max(whole)]
    wins = _latency(longest["flash"]) < _latency(longest["cudnn"])
    return Claim(
        text=text,
        verdict="depends",
        because=f"{'; '.join(said)}: cuDNN {'loses' if wins else 'wins'} at the longest, and pays "
        f"{statistics.median(firsts):.3g} ms for the plans of each new shape",
    )


def _latency(record: Record) -> float:
    latency = record.outcome.metrics.latency_ms
    assert latency is not None
    return latency


CLAIMS: Sequence[Callable[[Evidence], Claim]] = (
    math_is_slower,
    naive_has_five,
    hidden_memcpy,
    upcast,
    mask_rebuilt,
    safe_softmax,
    flash_occupancy,
    cudnn_occupancy,
    cudnn_cpu,
    no_transposes,
    own_kernels,
    cudnn_gain,
    gemms_dominate,
    which_for_what,
)


def _untested(text: str) -> Claim:
    return Claim(text=text, verdict="untested", because="the records given hold no such case")


def _over(evidence: Evidence, slower: str, faster: str) -> str:
    found = evidence.forwards(**SHAPE)
    if slower not in found or faster not in found:
        return "not measured in a whole forward"
    times = [found[name].outcome.metrics.device_ms for name in (slower, faster)]
    if not all(times):
        return "not measured in a whole forward"
    return f"{times[0] / times[1]:.2f}x in the whole 8-layer forward"  # type: ignore[operator]


def _a_layer(evidence: Evidence, backend: str) -> str:
    record = evidence.forwards(**SHAPE).get(backend)
    if record is None or record.outcome.profile is None:
        return "an unknown number"
    inside = [r for r in rows(record.outcome.profile) if r.in_attention and r.kernel.kind == "kernel"]
    return f"{len(inside) / record.case.layers:.4g}"


def _names(found: Sequence[Row]) -> str:
    return ", ".join(f"`{name[:70]}`" for name in dict.fromkeys(row.kernel.name for row in found)) or "-"


if __name__ == "__main__":
    main()

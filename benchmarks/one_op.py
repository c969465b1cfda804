"""The published profile of one attention call, repeated on this card: kernels, times, occupancy.

    python benchmarks/one_op.py FILE.json [--device cuda]

Batch 8, 16 heads of 64, 1024 tokens, bfloat16, causal, as in the profile of an A100 that is quoted in
claims.py. A forward is the attention call alone, timed and profiled by what measures whole forwards.
"""

import argparse
import functools
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscale.case import Case, Timing
from attnscale.measure import attention, kernels, memory, timing
from attnscale.measure.clocks import Clocks
from attnscale.measure.device import snapshot
from attnscale.measure.sampling import settle

BACKENDS = ("naive", "naive_inplace", "math", "efficient", "flash", "cudnn")
SAMPLING = Timing(settle_seconds=1.0, precision=0.005, min_samples=10, max_seconds=0.7, flush_l2=False)


class Call(nn.Module):
    """One attention call, under the name that a profile knows as attention itself."""

    def __init__(self, attend: attention.Attend) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(q, k, v)


def main() -> None:
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    backends = BACKENDS if arguments.device == "cuda" else ("naive", "naive_inplace", "math", "flash")
    calls = {name: measured(_case(name, arguments.device)) for name in backends}
    environment = snapshot(arguments.device).model_dump(mode="json")
    arguments.file.write_text(json.dumps({"environment": environment, "calls": calls}, indent=1) + "\n")
    for name, call in calls.items():
        times = ", ".join(f"{key} {value:.4g}" for key, value in call.items() if key.endswith("_ms"))
        print(f"{name:<14} {len(call['profile']['launches'])} launches, {times}")


def measured(case: Case) -> dict[str, Any]:
    """Times in milliseconds and the profile of one call."""
    attend = attention.build(case)
    inputs = [tensor.contiguous() for tensor in attention.inputs(case)]  # as in that profile
    model = nn.ModuleDict({"core": Call(attend.attend)})
    root = nn.ModuleDict({"attention": model})  # its path is attention.core
    call = functools.partial(model["core"], *inputs)
    clocks = Clocks(case.device)
    found: dict[str, Any] = {}
    with torch.inference_mode(), attend.pinned():
        found["first_call_ms"] = timing.first_call_ms(call, case.device)
        windows = timing.windows_of(call, SAMPLING, case.device)
        settle(windows.warm, clocks.read, SAMPLING)
        device = timing.device_time(windows, SAMPLING, clocks.read)
        if device.windows:
            found["device_ms"] = statistics.median(window.ms for window in device.windows)
        latency = timing.latencies(call, SAMPLING, case.device)
        found["latency_ms"] = statistics.median(latency.waited)
        if latency.host:
            found["host_ms"] = statistics.median(latency.host)
        profile = kernels.profiled(root, call, case.device, forward_ms=found["latency_ms"])
    found["profile"] = profile.model_dump(mode="json")
    memory.release(case.device)
    return found


def _case(backend: str, device: str) -> Case:
    return Case(
        model="one call",
        arch="gpt",
        backend=backend,
        seq=1024,
        batch=8,
        heads=16,
        kv_heads=16,
        head_dim=64,
        layers=1,
        ffn_dim=4096,
        vocab=8192,
        dtype="bfloat16",
        causal=True,
        device=device,
        seed=0,
        timing=SAMPLING,
    )


if __name__ == "__main__":
    main()

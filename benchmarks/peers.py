"""The same forwards timed by other people's tools: one case a line in, one line of results out.

    echo '{"backend": "flash", ...}' | python benchmarks/peers.py

Of attnscale it takes the forward and nothing that measures. On a GPU, after a second of warm-up:

- triton_ms: triton.testing.do_bench_cudagraph, median;
- kernels_ms: durations of all kernels of a forward in torch.profiler's events, summed, median of five;
- blocked_ms: torch.utils.benchmark's blocked_autorange, median: forwards back to back;
- single_ms: the same Timer's timeit(1), median of its calls: one forward, the queue empty before.

On a CPU the last two.
"""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from attnscale.case import Case, Timing
from attnscale.measure import attention
from attnscale.measure.model import build_model, random_tokens

WARM_S = 1.0


def timed(case: Case) -> dict[str, float]:
    """Milliseconds by name."""
    attend = attention.build(case)
    forward = functools.partial(build_model(case, attend), random_tokens(case))
    with torch.inference_mode(), attend.pinned():
        warm(forward, case.device)
        found = {}
        if case.device == "cuda":
            from triton.testing import do_bench_cudagraph

            found["triton_ms"] = float(do_bench_cudagraph(forward, rep=100, return_mode="median"))
            found["kernels_ms"] = statistics.median(summed_kernels_ms(forward) for _ in range(5))
        timer = Timer("forward()", globals={"forward": forward}, num_threads=torch.get_num_threads())
        found["blocked_ms"] = timer.blocked_autorange(min_run_time=0.7).median * 1e3
        found["single_ms"] = statistics.median(timer.timeit(1).median * 1e3 for _ in range(50))
    return found


def warm(forward: Callable[[], object], device: str) -> None:
    began = time.perf_counter()
    while time.perf_counter() - began < WARM_S:
        for _ in range(10):
            forward()
        if device == "cuda":
            torch.cuda.synchronize()


def summed_kernels_ms(forward: Callable[[], object]) -> float:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        forward()
        torch.cuda.synchronize()
    kernels = [one for one in profiler.key_averages() if one.device_type.name == "CUDA"]
    return float(sum(one.self_device_time_total for one in kernels)) / 1e3


def main() -> None:
    for line in sys.stdin:
        values = json.loads(line)
        values["timing"] = Timing(**values["timing"])
        print(json.dumps(timed(Case(**values))), flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""One profiled pass of a forward, apart from all timing: which kernels ran, and where in the model.

Ranges come from forward hooks that are there in this pass only. What the profiler breaks costs this pass
and never a time that was measured.
"""

import contextlib
import gzip
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from attnscale.evidence.trace import MODULE, STEP, TraceLost, profile_of
from attnscale.measure.device import synchronize
from attnscale.measure.model import SelfAttention
from attnscale.profile import Profile

STEPS = 3
_WARM_S = 0.15
"""The forwards before them, so that they run at a settled clock."""
_LONG_MS = 100.0
"""A forward from here on is profiled twice, the fewest to compare, and is warm from its sampling."""
_MOST_BYTES = 2**28
"""Of a trace before it is compressed."""
TRACE_NAME = "forward.pt.trace.json.gz"
_LABEL = re.compile(r"[^\w.]")


def profiled(
    model: nn.Module,
    forward: Callable[[], object],
    device: str,
    *,
    forward_ms: float,
    keep: Path | None = None,
) -> Profile:
    """Profile ``forward``, which runs ``model`` and takes about ``forward_ms``.

    The trace goes into the folder ``keep``, compressed, if there is one. TraceLost when the pass proves
    nothing.
    """
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "trace.json"
        with ranges(model):
            _export(forward, device, raw, *((STEPS, _WARM_S) if forward_ms < _LONG_MS else (2, 0.0)))
        size = raw.stat().st_size
        if size > _MOST_BYTES:
            raise TraceLost(
                f"the trace has {size / 2**20:.0f} MiB, and {_MOST_BYTES / 2**20:.0f} is most"
            )
        found = profile_of(_parsed(raw), on_cpu=device == "cpu")
        if keep is None:
            return found
        keep.mkdir(parents=True, exist_ok=True)
        with raw.open("rb") as plain, gzip.open(keep / TRACE_NAME, "wb", compresslevel=6) as packed:
            shutil.copyfileobj(plain, packed)
        return found.model_copy(update={"trace_file": TRACE_NAME})


@contextlib.contextmanager
def ranges(model: nn.Module) -> Iterator[None]:
    """A range around each module's forward, and one named core around attention itself."""
    handles = []
    restored = []
    for path, module in model.named_modules():
        if path:
            handles += _hooked(module, label(path))
        if isinstance(module, SelfAttention):
            restored.append((module, module.attend))
            module.attend = partial(_within, label(f"{path}.core"), module.attend)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, attend in restored:
            module.attend = attend


def label(path: str) -> str:
    """A quote in a label breaks the trace's JSON: letters, digits, dots and underscores stay."""
    return MODULE + _LABEL.sub("_", path)


def _within(name: str, function: Callable[..., Any], *args: Any) -> Any:
    with record_function(name):
        return function(*args)


def _hooked(module: nn.Module, name: str) -> list[Any]:
    opened: list[record_function] = []

    def before(*_: object) -> None:
        opened.append(record_function(name).__enter__())

    def after(*_: object) -> None:
        opened.pop().__exit__(None, None, None)

    return [
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, always_call=True),
    ]


def _export(forward: Callable[[], object], device: str, path: Path, steps: int, warm_s: float) -> None:
    """Warm forwards, then ``steps`` of them back to back, as the profiler saw them."""
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    try:
        with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=1)) as profiler:
            _warm(forward, device, warm_s)
            profiler.step()
            for _ in range(steps):
                with record_function(STEP):
                    forward()
            synchronize(device)
        profiler.export_chrome_trace(str(path))
    except RuntimeError as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TraceLost(f"the profiler failed: {first}") from error


def _warm(forward: Callable[[], object], device: str, seconds: float) -> None:
    """The last of them stays queued: the card does not idle before the first step."""
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        forward()
        synchronize(device)
    forward()


def _parsed(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return json.load(file)
    except ValueError as error:
        raise TraceLost(f"the trace is no valid JSON: {error}") from error

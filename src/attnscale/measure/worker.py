"""What the process that owns the device does: start once, then measure case after case.

The sweep hands these functions over by name, so its own process loads neither torch nor CUDA. All
that a case prints, and all that a fault prints while the process dies, is in the case's log: standard
output and error are redirected for the system's writes too.
"""

import contextlib
import faulthandler
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from attnscale.case import Case
from attnscale.record import Environment, Outcome, Status, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A measured case."""

    outcome: Outcome
    started_at: str
    """ISO 8601, UTC; as ended_at, by the process that measured."""
    ended_at: str
    left_bytes: int = 0
    """Device memory that the case still holds although it has ended."""
    resident_bytes: int = 0
    """Host memory of this process after the case."""


@dataclass(frozen=True, slots=True)
class Started:
    """A process ready to measure."""

    environment: Environment
    pid: int


def start(kind: str, uuid: str | None) -> Started:
    """Take the device (cuda or cpu), the GPU by its UUID alone, and load what measuring needs."""
    if uuid is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else each profiled pass says that it begins
    from attnscale.measure import device, forward  # noqa: F401 - loaded before a case's clock

    device.synchronize(kind)  # on a GPU this makes the context, which no case is to pay for
    return Started(device.snapshot(kind), os.getpid())


def measure(
    case: Case, log: Path | None, stack_after_s: float | None, trace: Path | None = None
) -> Answer:
    """Measure ``case`` with its output in ``log``; after ``stack_after_s`` seconds the stack goes there.

    The trace of its kernels stays in the folder ``trace``, if there is one.

    Whatever the case raises, sys.exit for one, is its outcome.
    """
    from attnscale.measure import forward, memory

    started_at = now()
    with _output_in(log), _stack_in_log(stack_after_s):
        try:
            outcome = forward.measure(case, trace)
            left = memory.usage(case.device)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a case may leave by any door
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            stack = "".join(traceback.format_exception(error))
            outcome = Outcome(status=Status.FAILED, reason=reason, traceback=stack)
            left = None
    return Answer(
        outcome=outcome,
        started_at=started_at,
        ended_at=now(),
        left_bytes=left.allocated if left else 0,
        resident_bytes=_resident_bytes(),
    )


@contextlib.contextmanager
def _output_in(log: Path | None) -> Iterator[None]:
    """Python's and the libraries' output into ``log``; no file when there was none, or no ``log``."""
    if log is None:
        yield
        return
    kept = [os.dup(1), os.dup(2)]
    with log.open("ab", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        yield
    finally:
        for python_stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # a full disk costs the last words, not the case
                python_stream.flush()
        for stream, original in enumerate(kept, start=1):
            os.dup2(original, stream)
            os.close(original)
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size == 0:
                log.unlink()


@contextlib.contextmanager
def _stack_in_log(after_s: float | None) -> Iterator[None]:
    """On a fault, and after so long, the Python stack of every thread goes to standard error."""
    if after_s is None:
        yield
        return
    faulthandler.enable(file=2)
    faulthandler.dump_traceback_later(after_s, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)

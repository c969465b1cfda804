"""The process that measures on one device, seen from the sweep: started, watched, replaced.

pebble keeps the process, its time-outs and its end; here is what a sweep makes of them: whatever
befalls the process while it measures a case is that case's outcome, and the process goes.
"""

import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from attnscale.case import Case
from attnscale.measure.worker import Answer, Started
from attnscale.record import Environment, Outcome, Status, now
from attnscale.sweep.devices import Device, Neighbours

Result = TypeVar("Result")

START_TIMEOUT_S = 300.0
GROWTH_BYTES = 2 * 2**30
"""Host memory that a worker may gain after its first case before it is replaced."""
_LOG_LINES = 20
_POLL_S = 0.5


class WorkerLost(Exception):
    """The process could not be started; the message says why."""


class Stopped(Exception):
    """The sweep was interrupted while a worker was at work."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """What the process runs; both by name, for they are looked up there."""

    start: Callable[[str, str | None], Started]
    measure: Callable[[Case, Path | None, float | None, Path | None], Answer]


class Worker(Protocol):
    """Measures one case after another on one device."""

    fresh: bool
    """Whether no case has run in this process."""

    def ready(self) -> Environment:
        """Start unless started; where the next case will run. WorkerLost when that fails."""

    def measure(self, case: Case, log: Path) -> Answer:
        """Measure after ``ready``; a fault is the case's outcome."""

    def foreign(self) -> list[str] | None:
        """Others that compute on the device; None where that is unknown."""

    def end(self) -> None:
        """End the process; ``ready`` starts another."""


class ProcessWorker:
    """A worker in a process of its own, replaced as soon as it can't be trusted with another case."""

    def __init__(
        self,
        device: Device,
        measuring: Measuring,
        *,
        timeout_s: float,
        keep: bool,
        stop: threading.Event,
        keep_trace: bool = False,
    ) -> None:
        self.device = device
        self.fresh = True
        self._measuring = measuring
        self._timeout_s = timeout_s
        self._keep = keep
        """Whether it measures more than one case."""
        self._keep_trace = keep_trace
        self._stop = stop
        self._pool: Any = None
        self._started: Started | None = None
        self._neighbours = Neighbours(device)
        self._first_resident_bytes: int | None = None

    def ready(self) -> Environment:
        if self._started is None:
            before = self._neighbours.processes() if self.device.uuid else None
            try:
                self._started = self._start()
            except WorkerLost:  # a GPU may need a moment after a fault
                self._started = self._start()
            if before is not None:
                self._neighbours.adopt(before, self._started.pid)
        return self._started.environment

    def measure(self, case: Case, log: Path) -> Answer:
        assert self._started is not None
        self.fresh = False
        began = now()
        stack_after_s = self._timeout_s * 0.95
        try:
            trace = log.parent if self._keep_trace else None
            args = (case, log, stack_after_s, trace)
            answer = self._run(self._measuring.measure, args, self._timeout_s, self._started.pid)
        except _Overdue:
            reason = f"no result within case_timeout_s={self._timeout_s:g} s"
            answer = _lost(Status.TIMEOUT, reason, began)
        except _Died as death:
            answer = _lost(Status.CRASHED, f"the worker died: {death}", began)
        if not answer.outcome.status.expected:
            answer = replace(answer, outcome=_with_log(answer.outcome, log))
        if not self._keep or self._spent(answer):
            self.end()
        return answer

    def foreign(self) -> list[str] | None:
        return self._neighbours.foreign() if self.device.uuid else None

    def end(self) -> None:
        self.fresh = True
        self._started = None
        self._first_resident_bytes = None
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.stop()
            pool.join()

    def _start(self) -> Started:
        from pebble import ProcessPool

        spawning = multiprocessing.get_context("spawn")  # a forked process can't use CUDA
        self._pool = ProcessPool(
            max_workers=1, context=spawning, initializer=die_with_parent, initargs=[os.getpid()]
        )
        try:
            return self._run(
                self._measuring.start, (self.device.kind, self.device.uuid), START_TIMEOUT_S, None
            )
        except _Overdue as error:
            self.end()
            raise WorkerLost(f"not ready within {START_TIMEOUT_S:g} s") from error
        except _Died as error:
            self.end()
            raise WorkerLost(f"it died while starting: {error}") from error
        except Stopped:
            raise
        except Exception as error:
            self.end()
            raise WorkerLost(f"{type(error).__name__}: {error}") from error

    def _run(
        self, function: Callable[..., Result], args: tuple[Any, ...], timeout_s: float, pid: int | None
    ) -> Result:
        """The function's result from the process. _Overdue, _Died, Stopped, or what it raised."""
        from pebble import ProcessExpired

        future = self._pool.schedule(function, args=args, timeout=timeout_s)
        while not concurrent.futures.wait([future], timeout=_POLL_S).done:
            if self._stop.is_set():
                raise Stopped
            # pebble takes an exit with code 0 for a good one and would wait for the result for ever.
            if pid is not None and not _alive(pid) and not _done_soon(future):
                raise _Died("it exited with code 0")
        try:
            result: Result = future.result()
        except ProcessExpired as death:
            raise _Died(_how(death.exitcode)) from death
        except TimeoutError as error:
            raise _Overdue from error
        return result

    def _spent(self, answer: Answer) -> bool:
        """Whether it could harm the next case: a fault, memory left behind, or grown too large."""
        if self._first_resident_bytes is None:
            self._first_resident_bytes = answer.resident_bytes
        grown = answer.resident_bytes - self._first_resident_bytes > GROWTH_BYTES
        return not answer.outcome.status.expected or answer.left_bytes > 0 or grown


class InlineWorker:
    """No process at all: for debuggers. A fault is not survived, and nothing times out."""

    fresh = True

    def __init__(self, device: Device, measuring: Measuring, *, keep_trace: bool = False) -> None:
        self.device = device
        self._measuring = measuring
        self._keep_trace = keep_trace

    def ready(self) -> Environment:
        return self._measuring.start(self.device.kind, self.device.uuid).environment

    def measure(self, case: Case, log: Path) -> Answer:
        return self._measuring.measure(case, None, None, log.parent if self._keep_trace else None)

    def foreign(self) -> list[str] | None:
        return None

    def end(self) -> None:
        pass


class _Died(Exception):
    """The process is gone; the message says how."""


class _Overdue(Exception):
    """The time was up and the process was ended."""


def die_with_parent(parent: int) -> None:
    """Runs in the worker: it must not outlive a sweep that was killed, even while it measures."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def _lost(status: Status, reason: str, began: str) -> Answer:
    return Answer(outcome=Outcome(status=status, reason=reason), started_at=began, ended_at=now())


def _with_log(outcome: Outcome, log: Path) -> Outcome:
    """With the last lines of the log; an empty one is removed."""
    with contextlib.suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if not lines:
            log.unlink()
        elif outcome.log_tail is None:
            return outcome.model_copy(update={"log_tail": "\n".join(lines[-_LOG_LINES:])})
    return outcome


def _how(exitcode: int | None) -> str:
    if exitcode is None:
        return "it is gone, nobody knows how"
    if exitcode >= 0:
        return f"it exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (by the system, for host memory, unless somebody did)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def _alive(pid: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(pid))


def _done_soon(future: "concurrent.futures.Future[Any]") -> bool:
    """Whether the result of a process that is gone was still on its way."""
    return bool(concurrent.futures.wait([future], timeout=2 * _POLL_S).done)

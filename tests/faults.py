"""Cases that do what cases of the world do: crash, hang, leak. Found by name in the worker's process.

Which fault a case of backend=naive has is told by its seq; every other case is good. Measuring is
real where ``measure`` is used, and invented where ``pretend`` is, which needs no torch.
"""

import ctypes
import os
import signal
import sys
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path

from attnscale.case import Case
from attnscale.measure.worker import Answer, Started
from attnscale.record import Outcome, Status, now
from tests.conftest import ENVIRONMENT, make_record

LEAKED: list[bytearray] = []


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    sys.stderr.write("the allocator is upset\n")
    sys.stderr.flush()
    os.abort()


def exit_3() -> None:
    os._exit(3)


def exit_0() -> None:
    os._exit(0)


def sys_exit() -> None:
    sys.exit("leaving early")


def hang() -> None:
    print("about to hang", flush=True)
    time.sleep(3600)


def hang_hard() -> None:
    """In C, with the interpreter's lock held and SIGTERM blocked: only SIGKILL ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.PyDLL(None).sleep(3600)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raises() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def leak() -> None:
    LEAKED.append(bytearray(8 * 2**20))


def illegal_access() -> None:
    """A kernel that writes where nothing is: the context is lost to its process."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def poke(pointer):  # type: ignore[no-untyped-def]
        tl.store(pointer + (1 << 40), 1.0)

    poke[(1,)](torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()


def device_assert() -> None:
    """An index that its kernel refuses."""
    import torch

    torch.nn.functional.embedding(torch.tensor([10**6], device="cuda"), torch.zeros(4, 4, device="cuda"))
    torch.cuda.synchronize()


FAULTS: dict[int, Callable[[], None]] = {
    101: segfault,
    102: abort,
    103: exit_3,
    104: exit_0,
    105: sys_exit,
    106: hang,
    107: hang_hard,
    108: killed,
    109: raises,
    110: leak,
    111: illegal_access,
    112: device_assert,
}
SEQ = {fault.__name__: seq for seq, fault in FAULTS.items()}
OUT_OF_MEMORY = 120
"""Runs out of memory in any worker."""
FRAGMENTED = 121
"""Runs out of memory in a worker that has measured something before, and nowhere else."""


def start(kind: str, uuid: str | None) -> Started:
    """As the worker's, without torch."""
    update = {"gpu_uuid": uuid} if uuid else {}
    return Started(ENVIRONMENT.model_copy(update=update), os.getpid())


_MEASURED: list[str] = []


def commit_fault(case: Case) -> None:
    """Whatever the case is for."""
    if case.backend == "naive" and case.seq in FAULTS:
        FAULTS[case.seq]()


def pretend(case: Case, log: Path | None, stack_after_s: float | None, _: Path | None) -> Answer:
    """What ``measure`` does with the case, its faults included, but for the forward."""
    from attnscale.measure import worker

    before, began = len(_MEASURED), now()
    _MEASURED.append(case.key)
    with worker._output_in(log), worker._stack_in_log(stack_after_s):
        outcome = outcome_of(case, before)
    return Answer(
        outcome=outcome,
        started_at=began,
        ended_at=now(),
        left_bytes=sum(map(len, LEAKED)),
        resident_bytes=2**20,
    )


def measure(case: Case, log: Path | None, stack_after_s: float | None, _: Path | None) -> Answer:
    """The worker's own measuring, with the fault in the middle of the case."""
    from attnscale.measure import forward, worker
    from attnscale.measure.model import random_tokens as good

    def faulty(case: Case) -> object:
        commit_fault(case)
        return good(case)

    with unittest.mock.patch.object(forward, "random_tokens", faulty):
        return worker.measure(case, log, stack_after_s)


def outcome_of(case: Case, before: int) -> Outcome:
    try:
        commit_fault(case)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as the worker does
        return Outcome(status=Status.FAILED, reason=f"{type(error).__name__}: {error}")
    if case.seq >= 4096 or case.seq == OUT_OF_MEMORY or (case.seq == FRAGMENTED and before):
        return Outcome(status=Status.OOM, reason="OutOfMemoryError: 80 GiB too much")
    outcome = make_record(case).outcome
    return outcome.model_copy(update={"latency_samples_ms": [2.0] * case.timing.min_samples})

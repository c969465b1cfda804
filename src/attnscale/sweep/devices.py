"""Which devices a sweep may use, found without CUDA; their lease; who else computes on them.

GPUs are found by NVML, named by UUID and never by an index that another library counts otherwise. The
lease is a file lock on the UUID, the same for every process and user of the machine; the system gives
it back when its holder dies.
"""

import contextlib
import functools
import importlib.util
import os
import runpy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from filelock import FileLock, Timeout

from attnscale.case import InvalidConfig

LEASES = Path("/tmp/attnscale-leases")
"""Not TMPDIR, which differs between users and jobs."""
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Device:
    """One place where cases run one at a time."""

    kind: str
    """cuda or cpu."""
    name: str
    uuid: str | None = None
    """Of the GPU; None for a CPU."""

    def __str__(self) -> str:
        return f"{self.name} ({self.uuid})" if self.uuid else self.name


CPU = Device("cpu", "the CPU")


class NoGpu(Exception):
    """No GPU can be used here; the message says why."""


def resolve(requested: str) -> str:
    """cuda or cpu for what the config asks (auto, cuda, cpu). InvalidConfig where there is no GPU."""
    if requested == "cpu":
        return "cpu"
    try:
        visible_gpus()
    except NoGpu as error:
        if requested == "auto":
            return "cpu"
        why = f"no CUDA device is visible here ({error}); allowed: auto, cpu"
        raise InvalidConfig("device", "cuda", why) from error
    return "cuda"


def visible_gpus() -> list[Device]:
    """Every GPU that CUDA_VISIBLE_DEVICES leaves, in NVML's order. NoGpu when there is none."""
    if _torch_cuda() is None:
        raise NoGpu("this torch is a CPU build")
    import pynvml

    try:
        nvml = _nvml()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        present = [
            Device("cuda", nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle))
            for handle in handles
        ]
    except pynvml.NVMLError as error:
        raise NoGpu(f"NVML: {error}") from error
    visible = _left_by(os.environ.get("CUDA_VISIBLE_DEVICES"), present)
    if not visible:
        hides = (
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} hides them" if present else ""
        )
        raise NoGpu(hides or "the driver knows of none")
    return visible


def chosen_gpus(gpus: str) -> list[Device]:
    """The visible GPUs that ``gpus`` (all, or indices such as 0,2) names; all of one kind.

    InvalidConfig for what is not there, and for cards of several kinds: their times don't compare.
    """
    try:
        visible = visible_gpus()
    except NoGpu as error:
        raise InvalidConfig("gpus", gpus, f"no CUDA device is visible here ({error})") from error
    allowed = f"all, or some of the indices {', '.join(str(index) for index in range(len(visible)))}"
    if gpus == "all":
        chosen = visible
    else:
        indices = [int(text) if text.isdecimal() else -1 for text in gpus.split(",")]
        if not all(0 <= index < len(visible) for index in indices):
            raise InvalidConfig("gpus", gpus, allowed)
        chosen = [visible[index] for index in dict.fromkeys(indices)]
    kinds = {device.name for device in chosen}
    if len(kinds) > 1:
        differ = f"the cards differ ({', '.join(sorted(kinds))}) and one sweep compares on one kind"
        why = f"{differ}: {allowed}"
        raise InvalidConfig("gpus", gpus, why)
    return chosen


@contextlib.contextmanager
def lease(
    device: Device,
    *,
    give_up: Callable[[], bool],
    waiting: Callable[[str], None],
    folder: Path = LEASES,
) -> Iterator[bool]:
    """Hold ``device`` for this process alone; wait while another does, and tell ``waiting`` who.

    False when ``give_up`` became true first. A CPU needs no lease.
    """
    if device.uuid is None:
        yield True
        return
    _make_open_to_all(folder)
    path = folder / f"{device.uuid}.lock"
    lock = FileLock(path, mode=0o666, on_acquired=_sign, poll_interval=_POLL_S)
    if not _taken_at_once(lock):
        waiting(f"waiting for {device}: it is leased by {_holder(path)}")
        try:
            lock.acquire(cancel_check=give_up)
        except Timeout:
            yield False
            return
    try:
        yield True
    finally:
        lock.release()


class Neighbours:
    """The compute processes of others on one GPU, by NVML.

    In a container NVML may name processes otherwise than the container does. So what is there before
    our worker is foreign, and what comes with our worker is the worker.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._own: set[int] = set()

    def adopt(self, before: dict[int, str], pid: int) -> None:
        """Take as our own the worker ``pid``, which has started since ``before`` was seen."""
        after = self.processes() or {}
        self._own = {pid} if pid in after else {pid, *(set(after) - set(before))}

    def foreign(self) -> list[str] | None:
        """Those of others, named; None where NVML can't say."""
        processes = self.processes()
        if processes is None:
            return None
        return [name for pid, name in sorted(processes.items()) if pid not in self._own]

    def processes(self) -> dict[int, str] | None:
        """Every compute process on the GPU: its number, and how it is named in a record."""
        import pynvml

        try:
            handle = _nvml().nvmlDeviceGetHandleByUUID(self.device.uuid)
            running = _nvml().nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError:
            return None
        return {process.pid: _named(process.pid, process.usedGpuMemory) for process in running}


def _named(pid: int, used_bytes: int | None) -> str:
    import psutil

    try:
        name = psutil.Process(pid).name()
    except psutil.Error:
        name = "unknown"
    memory = "" if used_bytes is None else f", {used_bytes / 2**20:.0f} MiB"
    return f"{name} (pid {pid}{memory})"


@functools.cache
def _nvml() -> ModuleType:
    """NVML, started once; starting it for every question would cost more than the question."""
    import pynvml

    nvml: ModuleType = pynvml
    nvml.nvmlInit()
    return nvml


def _torch_cuda() -> str | None:
    """The CUDA that torch is built for, from its version file: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    cuda = version["cuda"]
    return None if cuda is None else str(cuda)


def _left_by(variable: str | None, present: Sequence[Device]) -> list[Device]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order. As CUDA does, up to the first that isn't there."""
    if variable is None:
        return list(present)
    left: list[Device] = []
    for text in (part.strip() for part in variable.split(",")):
        if text.startswith("MIG-"):
            left.append(Device("cuda", "MIG instance", text))
            continue
        matching = [device for device in present if text and str(device.uuid).startswith(text)]
        if text.isdecimal() and int(text) < len(present):
            matching = [present[int(text)]]
        if len(matching) != 1:
            break
        left.append(matching[0])
    return list(dict.fromkeys(left))


def _make_open_to_all(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):  # another user's, who did the same
        folder.chmod(0o777)  # whatever the umask; not sticky, or filelock refuses the files of others


def _taken_at_once(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True


def _sign(handle: int) -> None:
    """Leave in the lock file who holds it, for those who wait."""
    import psutil

    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{psutil.Process().username()}, pid {os.getpid()}".encode(), 0)


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"

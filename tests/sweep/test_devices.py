"""Devices: which GPUs a sweep may use, whose they are meanwhile, and who else computes on them.

NVML is invented; the lock files and the processes that hold them are real.
"""

# ruff: noqa: N802 - the names of the functions are NVML's

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pynvml
import pytest

from attnscale.case import InvalidConfig
from attnscale.sweep import devices
from attnscale.sweep.devices import (
    CPU,
    Device,
    Neighbours,
    NoGpu,
    chosen_gpus,
    lease,
    resolve,
    visible_gpus,
)

GONE = 2**22 + 1
"""No process has this number: it is above the kernel's largest."""


@dataclass
class Process:
    """As NVML tells of one."""

    pid: int
    usedGpuMemory: int | None


@dataclass
class Nvml:
    """The functions of pynvml that are used, over invented cards; a handle is the card's UUID."""

    cards: dict[str, str]
    """UUID -> name, in NVML's order."""
    running: dict[str, list[Process]] = field(default_factory=dict)
    broken: bool = False

    def nvmlDeviceGetCount(self) -> int:
        self._answer()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self._answer()
        return list(self.cards)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._answer()
        if uuid not in self.cards:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> str:
        return self.cards[handle]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Process]:
        self._answer()
        return self.running.get(handle, [])

    def _answer(self) -> None:
        if self.broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


THREE = {"GPU-aaaa-1": "Fake H200", "GPU-aabb-2": "Fake H200", "GPU-cccc-3": "Fake H200"}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """Three cards of one kind, all visible, and a torch that can use them."""
    fake = Nvml(dict(THREE))
    monkeypatch.setattr(devices, "_nvml", lambda: fake)
    monkeypatch.setattr(devices, "_torch_cuda", lambda: "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def indices(found: list[Device]) -> list[int]:
    return [list(THREE).index(str(device.uuid)) for device in found]


def test_a_gpu_is_named_as_nvml_names_it(nvml: Nvml) -> None:
    first = visible_gpus()[0]
    assert first == Device("cuda", "Fake H200", "GPU-aaaa-1")
    assert (str(first), str(CPU)) == ("Fake H200 (GPU-aaaa-1)", "the CPU")


@pytest.mark.parametrize(
    ("variable", "left"),
    [
        (None, [0, 1, 2]),
        ("1", [1]),
        ("1,0", [1, 0]),
        (" 2 , 0 ", [2, 0]),
        ("0,9,1", [0]),
        ("2,-1,0", [2]),
        ("GPU-cccc-3", [2]),
        ("GPU-cc", [2]),
        ("GPU-aaaa,GPU-aabb", [0, 1]),
        ("1,GPU-aa,0", [1]),
        ("1,GPU-none,0", [1]),
        ("1,x,0", [1]),
        ("1,,0", [1]),
    ],
    ids=[
        "unset",
        "one",
        "in-its-order",
        "blanks",
        "up-to-a-missing-one",
        "up-to-minus-one",
        "uuid",
        "prefix",
        "prefixes",
        "up-to-an-ambiguous-prefix",
        "up-to-an-unknown-uuid",
        "up-to-a-word",
        "up-to-nothing",
    ],
)
def test_cuda_visible_devices_leaves_what_cuda_would(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, variable: str | None, left: list[int]
) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert indices(visible_gpus()) == left


@pytest.mark.parametrize("variable", ["0,0", "GPU-aaaa-1,0", "0,GPU-aaaa"])
def test_a_gpu_that_is_named_twice_is_not_two(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with contextlib.suppress(NoGpu):
        assert indices(visible_gpus()) == [0]


def test_a_mig_instance_is_taken_at_its_word(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert visible_gpus() == [Device("cuda", "MIG instance", "MIG-1234")]


@pytest.mark.parametrize("variable", ["", "-1", "7", "x", "GPU-aa", "NoDevFiles"])
def test_hidden_gpus_are_none_and_the_variable_is_named(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(NoGpu) as caught:
        visible_gpus()
    assert str(caught.value) == f"CUDA_VISIBLE_DEVICES={variable} hides them"


def cpu_build(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(devices, "_torch_cuda", lambda: None)


def nvml_breaks(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    nvml.broken = True


def nvml_does_not_start(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    def start() -> Nvml:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    patch.setattr(devices, "_nvml", start)


def no_cards(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    nvml.cards.clear()


def no_cards_and_hidden(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    nvml.cards.clear()
    patch.setenv("CUDA_VISIBLE_DEVICES", "0")


def hidden(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("CUDA_VISIBLE_DEVICES", "-1")


@pytest.mark.parametrize(
    ("lack", "why"),
    [
        (cpu_build, "this torch is a CPU build"),
        (nvml_breaks, "NVML: "),
        (nvml_does_not_start, "NVML: "),
        (no_cards, "the driver knows of none"),
        (no_cards_and_hidden, "the driver knows of none"),
        (hidden, "CUDA_VISIBLE_DEVICES=-1 hides them"),
    ],
)
def test_without_a_gpu_auto_is_the_cpu_and_cuda_says_why(
    nvml: Nvml,
    monkeypatch: pytest.MonkeyPatch,
    lack: Callable[[Nvml, pytest.MonkeyPatch], None],
    why: str,
) -> None:
    lack(nvml, monkeypatch)
    with pytest.raises(NoGpu, match=why):
        visible_gpus()
    assert (resolve("auto"), resolve("cpu")) == ("cpu", "cpu")
    message = rf"^device=cuda: no CUDA device is visible here \({why}.*\); allowed: auto, cpu$"
    with pytest.raises(InvalidConfig, match=message):
        resolve("cuda")


@pytest.mark.parametrize(
    ("requested", "device"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")], ids=str
)
def test_with_a_gpu_only_cpu_is_the_cpu(nvml: Nvml, requested: str, device: str) -> None:
    assert resolve(requested) == device


def test_the_cpu_asks_no_nvml(nvml: Nvml) -> None:
    nvml.broken = True
    assert resolve("cpu") == "cpu"


@pytest.mark.parametrize("built_for", ["13.0", None], ids=["cuda", "cpu"])
def test_what_torch_is_built_for_is_in_its_version_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built_for: str | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch/version.py").write_text(f"cuda = {built_for!r}")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert devices._torch_cuda() == built_for


@pytest.mark.parametrize(
    ("gpus", "chosen"),
    [("all", [0, 1, 2]), ("0", [0]), ("0,2", [0, 2]), ("2,0", [2, 0]), ("0,0", [0])],
    ids=["all", "one", "two", "in-the-order-given", "once"],
)
def test_gpus_are_chosen_by_index(nvml: Nvml, gpus: str, chosen: list[int]) -> None:
    assert indices(chosen_gpus(gpus)) == chosen


@pytest.mark.parametrize("gpus", ["3", "x", "-1", "0,", "", "0,3", "0, 1", "0;1", "1.0", "All", "²"])
def test_a_gpu_that_is_not_there_is_refused(nvml: Nvml, gpus: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        chosen_gpus(gpus)
    assert str(caught.value) == f"gpus={gpus}: all, or some of the indices 0, 1, 2"


@pytest.mark.parametrize("gpus", ["all", "0"])
def test_where_there_is_no_gpu_none_can_be_chosen(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    """As when a sweep of another machine is gone on with on one without a GPU."""
    cpu_build(nvml, monkeypatch)
    with pytest.raises(InvalidConfig, match="this torch is a CPU build"):
        chosen_gpus(gpus)


def test_an_index_counts_among_the_visible(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert indices(chosen_gpus("0")) == [2]
    with pytest.raises(InvalidConfig, match=r"^gpus=2: all, or some of the indices 0, 1$"):
        chosen_gpus("2")


def test_cards_of_two_kinds_are_refused_and_one_kind_of_them_is_not(nvml: Nvml) -> None:
    nvml.cards["GPU-aabb-2"] = "Fake A100"
    assert indices(chosen_gpus("2,0")) == [2, 0]
    for gpus in ("all", "0,1"):
        with pytest.raises(InvalidConfig) as caught:
            chosen_gpus(gpus)
        differ = "the cards differ (Fake A100, Fake H200) and one sweep compares on one kind"
        assert str(caught.value) == f"gpus={gpus}: {differ}: all, or some of the indices 0, 1, 2"


GPU = Device("cuda", "Fake H200", "GPU-aaaa-1")
HOLDER = """
import sys
from pathlib import Path
from attnscale.sweep.devices import Device, lease
device = Device("cuda", "Fake H200", sys.argv[1])
with lease(device, give_up=lambda: True, waiting=print, folder=Path(sys.argv[2])) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_another(device: Device, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease of ``device`` until it is killed or told to end."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(device.uuid), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        try:
            yield holder
        finally:
            holder.kill()


def never() -> bool:
    return False


def after(seconds: float) -> Callable[[], bool]:
    """True from then on, so that no test waits for ever."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


def nobody_waits(text: str) -> None:
    raise AssertionError(text)


def test_a_free_gpu_is_leased_at_once_and_again(tmp_path: Path) -> None:
    for _ in range(2):
        with lease(GPU, give_up=never, waiting=nobody_waits, folder=tmp_path / "leases") as held:
            assert held


def test_a_leased_gpu_is_waited_for_and_ours_when_its_holder_is_killed(tmp_path: Path) -> None:
    texts = []
    with held_by_another(GPU, tmp_path) as holder:

        def waiting(text: str) -> None:
            texts.append(text)
            holder.send_signal(signal.SIGKILL)

        with lease(GPU, give_up=after(10), waiting=waiting, folder=tmp_path) as held:
            assert held
            ours = (tmp_path / "GPU-aaaa-1.lock").read_text()
    user = psutil.Process().username()
    waits = "waiting for Fake H200 (GPU-aaaa-1): it is leased by"
    assert texts == [f"{waits} {user}, pid {holder.pid}"]
    assert ours == f"{user}, pid {os.getpid()}"


def test_a_leased_gpu_is_ours_when_its_holder_ends_well(tmp_path: Path) -> None:
    with held_by_another(GPU, tmp_path) as holder:
        end = holder.stdin
        assert end is not None
        with lease(GPU, give_up=after(10), waiting=lambda _: end.close(), folder=tmp_path) as held:
            assert held


def test_who_gives_up_does_not_hold_the_gpu(tmp_path: Path) -> None:
    asked = []

    def give_up() -> bool:
        asked.append(True)
        return len(asked) > 1

    with held_by_another(GPU, tmp_path) as holder:
        with lease(GPU, give_up=give_up, waiting=lambda _: None, folder=tmp_path) as held:
            assert not held
        assert holder.poll() is None
        assert str(holder.pid) in (tmp_path / "GPU-aaaa-1.lock").read_text()
    assert len(asked) == 2


def test_a_lease_is_of_one_gpu_alone(tmp_path: Path) -> None:
    other = Device("cuda", "Fake H200", "GPU-aabb-2")
    with (
        held_by_another(GPU, tmp_path),
        lease(other, give_up=never, waiting=nobody_waits, folder=tmp_path) as held,
    ):
        assert held


def test_two_lanes_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    texts: list[str] = []

    def second() -> bool:
        with lease(GPU, give_up=lambda: True, waiting=texts.append, folder=tmp_path) as held:
            return held

    with (
        ThreadPoolExecutor(max_workers=1) as lane,
        lease(GPU, give_up=never, waiting=nobody_waits, folder=tmp_path) as first,
    ):
        assert (first, lane.submit(second).result(timeout=10)) == (True, False)
    assert str(os.getpid()) in texts[0]


def test_a_lease_ends_with_an_error_inside(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        lease(GPU, give_up=never, waiting=nobody_waits, folder=tmp_path),
    ):
        raise ZeroDivisionError
    with lease(GPU, give_up=never, waiting=nobody_waits, folder=tmp_path) as held:
        assert held


def test_a_cpu_needs_no_lease(tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    with lease(CPU, give_up=lambda: True, waiting=nobody_waits, folder=folder) as held:
        assert held
    assert not folder.exists()


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """os.umask, undone after the test."""
    before = os.umask(0o022)
    os.umask(before)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077], ids=oct)
def test_folder_and_file_are_open_to_other_users_whatever_the_umask(
    tmp_path: Path, umask: Callable[[int], int], mask: int
) -> None:
    folder = tmp_path / "leases"
    umask(mask)
    with lease(GPU, give_up=never, waiting=nobody_waits, folder=folder):
        pass
    (file,) = folder.iterdir()
    assert file.name == "GPU-aaaa-1.lock"
    assert oct(stat.S_IMODE(folder.stat().st_mode)) == "0o777"
    assert oct(stat.S_IMODE(file.stat().st_mode)) == "0o666"


FOLDERS_OWNER, FILES_OWNER, THIRD = 61001, 61002, 61003


@contextlib.contextmanager
def user(number: int) -> Iterator[None]:
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
@pytest.mark.parametrize(
    ("maker", "taker"),
    [
        (FOLDERS_OWNER, THIRD),
        (FILES_OWNER, FILES_OWNER),
        (FILES_OWNER, FOLDERS_OWNER),
        (FILES_OWNER, THIRD),
        (FILES_OWNER, 0),
    ],
    ids=["maker-of-both", "same-user", "folders-owner", "third-user", "root"],
)
def test_a_lease_that_one_user_left_is_taken_by_another(maker: int, taker: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o777)
        folder = Path(parent) / "leases"
        warm_up = Device("cuda", "Fake H200", "GPU-first")
        with lease(warm_up, give_up=never, waiting=nobody_waits, folder=Path(parent)):
            pass  # loads what another user may not read
        with (
            user(FOLDERS_OWNER),
            lease(warm_up, give_up=never, waiting=nobody_waits, folder=folder),
        ):
            pass
        for number in (maker, taker):
            with (
                user(number),
                lease(GPU, give_up=never, waiting=nobody_waits, folder=folder) as held,
            ):
                assert held


def named(pid: int, memory: str = "") -> str:
    name = psutil.Process(pid).name() if psutil.pid_exists(pid) else "unknown"
    return f"{name} (pid {pid}{memory})"


def test_foreign_processes_are_named_with_their_memory(nvml: Nvml) -> None:
    nvml.running = {"GPU-aaaa-1": [Process(GONE, None), Process(os.getpid(), 3 * 2**29)]}
    assert Neighbours(GPU).foreign() == [named(os.getpid(), ", 1536 MiB"), f"unknown (pid {GONE})"]


def test_processes_of_another_gpu_are_no_neighbours(nvml: Nvml) -> None:
    nvml.running = {"GPU-aabb-2": [Process(GONE, None)]}
    assert Neighbours(GPU).foreign() == []


def test_our_worker_is_not_foreign(nvml: Nvml) -> None:
    """NVML counts processes as we do: whoever starts beside our worker is foreign."""
    neighbours = Neighbours(GPU)
    nvml.running["GPU-aaaa-1"] = [Process(GONE, None)]
    before = neighbours.processes()
    assert before is not None
    worker = Process(os.getpid(), 2**30)
    nvml.running["GPU-aaaa-1"] += [worker, Process(GONE + 1, None)]
    neighbours.adopt(before, worker.pid)
    assert neighbours.foreign() == [named(GONE), named(GONE + 1)]


def test_our_worker_is_not_foreign_where_nvml_counts_processes_otherwise(nvml: Nvml) -> None:
    """The worker's number, as we know it, is not in NVML's list; the one that came with it is its."""
    neighbours = Neighbours(GPU)
    nvml.running["GPU-aaaa-1"] = [Process(GONE, None)]
    before = neighbours.processes()
    assert before is not None
    nvml.running["GPU-aaaa-1"].append(Process(GONE + 1, 2**30))
    neighbours.adopt(before, os.getpid())
    assert neighbours.foreign() == [named(GONE)]
    nvml.running["GPU-aaaa-1"].append(Process(GONE + 2, None))
    assert neighbours.foreign() == [named(GONE), named(GONE + 2)]


def test_a_second_worker_is_adopted_in_place_of_the_first(nvml: Nvml) -> None:
    neighbours = Neighbours(GPU)
    for worker in (GONE, GONE + 1):
        nvml.running["GPU-aaaa-1"] = []
        before = neighbours.processes()
        assert before == {}
        nvml.running["GPU-aaaa-1"] = [Process(worker, None)]
        neighbours.adopt(before, os.getpid())
        assert neighbours.foreign() == []
    nvml.running["GPU-aaaa-1"].append(Process(GONE, None))
    assert neighbours.foreign() == [named(GONE)]


def test_when_nvml_can_not_say_nothing_is_claimed(nvml: Nvml) -> None:
    nvml.broken = True
    neighbours = Neighbours(GPU)
    assert neighbours.processes() is None
    assert neighbours.foreign() is None
    neighbours.adopt({}, os.getpid())
    nvml.broken = False
    nvml.running["GPU-aaaa-1"] = [Process(os.getpid(), None), Process(GONE, None)]
    assert neighbours.foreign() == [named(GONE)]


def test_a_gpu_that_nvml_no_longer_knows_has_no_known_neighbours(nvml: Nvml) -> None:
    assert Neighbours(Device("cuda", "Fake H200", "GPU-lost")).foreign() is None

"""Lanes: cases on any number of devices, in which order, what is retried, inferred, refused.

The devices and the processes are invented; the lanes, the leases and the records are real.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from attnscale.case import Case, InvalidConfig
from attnscale.measure.worker import Answer
from attnscale.record import Environment, Kind, Outcome, Record, Status, now, read_repeats, read_sweep
from attnscale.sweep import run
from attnscale.sweep.devices import CPU, Device
from attnscale.sweep.folder import SweepFolder, joined, started
from attnscale.sweep.run import Settings, distinct, ordered, run_cases
from attnscale.sweep.worker import Measuring, WorkerLost
from tests import faults
from tests.conftest import ENVIRONMENT, TIMING, make_case, make_record

MEASURING = Measuring(faults.start, faults.pretend)


class FakeWorker:
    """Measures in its lane's thread, and remembers on which device."""

    seen: list[tuple[str | None, str]]
    busy: list[str | None]
    foreign_processes: list[str] | None = None
    lost: Callable[[Device], bool] = staticmethod(lambda device: False)

    def __init__(self, device: Device) -> None:
        self.device = device
        self.measured = 0

    @property
    def fresh(self) -> bool:
        return self.measured == 0

    def ready(self) -> Environment:
        if type(self).lost(self.device):
            raise WorkerLost("it died while starting: killed by SIGKILL")
        return ENVIRONMENT.model_copy(update={"gpu_uuid": self.device.uuid})

    def measure(self, case: Case, log: Path) -> Answer:
        assert self.device.uuid not in self.busy, "two cases at a time on one device"
        self.busy.append(self.device.uuid)
        self.seen.append((self.device.uuid, case.slug))
        began = now()
        time.sleep(0.01)
        outcome = faults.outcome_of(case, self.measured)
        self.measured += 1
        self.busy.remove(self.device.uuid)
        return Answer(outcome=outcome, started_at=began, ended_at=now())

    def foreign(self) -> list[str] | None:
        return self.foreign_processes

    def end(self) -> None:
        self.measured = 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    class Worker(FakeWorker):
        seen: list[tuple[str | None, str]] = []  # noqa: RUF012
        busy: list[str | None] = []  # noqa: RUF012

    monkeypatch.setattr(run._Run, "_worker", lambda self, device: Worker(device))
    return Worker


def gpus(count: int) -> list[Device]:
    return [Device("cuda", "Fake GPU", f"GPU-fake-{index}") for index in range(count)]


def swept(
    tmp_path: Path, cases: Sequence[Case], devices: Sequence[Device], **settings: Any
) -> list[Record]:
    """The records in the order of their measuring."""
    folder = started(cases, tmp_path / "out", "python run.py")
    run_cases(folder, devices, Settings(leases=tmp_path / "leases", **settings), MEASURING, None)
    records, skipped = read_sweep(folder.path)
    assert skipped == []
    return records


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_results_are_the_same_on_any_number_of_gpus(
    tmp_path: Path, fake: type[FakeWorker], count: int
) -> None:
    cases = [
        make_case(device="cuda", seq=seq, backend=backend)
        for seq in range(8, 72, 8)
        for backend in ("naive", "math")
    ]
    records = swept(tmp_path, cases, gpus(count))
    assert {record.key for record in records} == {case.key for case in cases}
    assert {record.outcome.status for record in records} == {Status.OK}
    used = {uuid for uuid, _ in fake.seen}
    assert len(used) == count
    assert {record.environment.gpu_uuid for record in records} == used
    assert len(fake.seen) == len(cases)


def test_a_gpu_measures_one_case_at_a_time_whoever_asks(tmp_path: Path, fake: type[FakeWorker]) -> None:
    """Three sweeps at once on two GPUs; FakeWorker.measure asserts that it is alone on its device."""
    cases = [make_case(device="cuda", seq=seq) for seq in range(8, 48, 8)]
    records: list[list[Record]] = []
    sweeps = [
        threading.Thread(target=lambda: records.append(swept(tmp_path, cases, gpus(2))))
        for _ in range(3)
    ]
    for sweep in sweeps:
        sweep.start()
    for sweep in sweeps:
        sweep.join(30)
    assert [len(found) for found in records] == [5, 5, 5]
    assert len(fake.seen) == 15


def test_cases_run_from_small_to_large_and_backends_of_a_shape_together(
    tmp_path: Path, fake: type[FakeWorker]
) -> None:
    cases = [make_case(seq=seq, backend=b) for b in ("naive", "math", "flash") for seq in (64, 16, 32)]
    records = swept(tmp_path, cases, [CPU])
    assert [(r.case.seq, r.case.backend) for r in records] == [
        (seq, backend) for seq in (16, 32, 64) for backend in ("naive", "math", "flash")
    ]


def test_backends_are_innermost_where_shapes_need_the_same_work() -> None:
    cases = [make_case(seed=seed, backend=b) for b in ("naive", "math") for seed in (2, 1)]
    assert [(case.seed, case.backend) for case in ordered(cases)] == [
        (seed, backend) for seed in (2, 1) for backend in ("naive", "math")
    ]


def test_cases_of_a_cpu_wait_for_those_of_the_gpus(tmp_path: Path, fake: type[FakeWorker]) -> None:
    cases = [make_case(device=device, seq=seq) for seq in (8, 16) for device in ("cpu", "cuda")]
    swept(tmp_path, cases, [*gpus(2), CPU])
    assert [uuid is None for uuid, _ in fake.seen] == [False, False, True, True]


def test_out_of_memory_counts_only_in_a_fresh_worker(tmp_path: Path, fake: type[FakeWorker]) -> None:
    cases = [make_case(seq=seq) for seq in (8, faults.OUT_OF_MEMORY, faults.FRAGMENTED, 200)]
    records = swept(tmp_path, cases, [CPU])
    assert [(r.case.seq, r.outcome.status, r.outcome.attempts) for r in records] == [
        (8, Status.OK, 1),
        (faults.OUT_OF_MEMORY, Status.OOM, 2),
        (faults.FRAGMENTED, Status.OK, 2),
        (200, Status.OK, 1),
    ]


def test_out_of_memory_in_the_first_case_of_a_worker_is_not_tried_again(
    tmp_path: Path, fake: type[FakeWorker]
) -> None:
    (record,) = swept(tmp_path, [make_case(seq=faults.OUT_OF_MEMORY)], [CPU])
    assert (record.outcome.status, record.outcome.attempts) == (Status.OOM, 1)


@pytest.mark.parametrize(
    ("change", "hopeless"),
    [
        ({"seq": 8192}, True),
        ({"batch": 4}, True),
        ({"seq": 8192, "batch": 4}, True),
        ({"seq": 16384, "batch": 1}, False),
        ({"seq": 8192, "backend": "math"}, False),
        ({"seq": 8192, "layers": 3}, False),
        ({"seq": 8192, "dtype": "bfloat16"}, False),
    ],
    ids=["seq", "batch", "both", "batch-smaller", "backend", "layers", "dtype"],
)
@pytest.mark.parametrize("skip", [True, False], ids=["skip", "no-skip"])
def test_a_hopeless_case_is_inferred_when_asked_and_says_so(
    tmp_path: Path, fake: type[FakeWorker], change: dict[str, Any], hopeless: bool, skip: bool
) -> None:
    first = make_case(seq=4096)
    second = make_case(**{"seq": 4096, **change})
    records = swept(tmp_path, [first, second], [CPU], skip_hopeless=skip)
    outcome = next(record.outcome for record in records if record.key == second.key)
    assert outcome.status is Status.OOM
    inferred = skip and hopeless
    assert outcome.inferred_from == (first.key if inferred else None)
    assert (second.slug in {slug for _, slug in fake.seen}) is not inferred
    if inferred:
        why = f"inferred, not run (skip_hopeless=true): {first.slug} ran out of memory"
        assert outcome.reason == why


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_a_foreign_process_is_recorded_and_refused_when_strict(
    tmp_path: Path, fake: type[FakeWorker], strict: bool
) -> None:
    fake.foreign_processes = ["python3 (pid 7, 1634 MiB)"]
    (record,) = swept(tmp_path, [make_case(device="cuda")], gpus(1), strict_gpu=strict)
    assert record.environment.foreign_processes == ["python3 (pid 7, 1634 MiB)"]
    assert record.outcome.status is (Status.FAILED if strict else Status.OK)
    assert len(fake.seen) == (0 if strict else 1)
    if strict:
        assert "others compute on this GPU: python3 (pid 7" in str(record.outcome.reason)


def test_what_is_not_known_of_others_has_its_reason(tmp_path: Path, fake: type[FakeWorker]) -> None:
    (record,) = swept(tmp_path, [make_case(device="cuda")], gpus(1))
    assert record.environment.foreign_processes is None
    assert record.environment.nulls["foreign_processes"] == "NVML could not say"


def test_a_gpu_whose_worker_does_not_start_leaves_its_cases_to_the_others(
    tmp_path: Path, fake: type[FakeWorker], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.lost = staticmethod(lambda device: str(device.uuid).endswith("-0"))
    cases = [make_case(device="cuda", seq=seq) for seq in range(8, 72, 8)]
    assert len(swept(tmp_path, cases, gpus(2))) == 8
    assert "GPU-fake-0): no worker could be started: it died while starting" in capsys.readouterr().err


def test_without_any_worker_nothing_is_recorded(tmp_path: Path, fake: type[FakeWorker]) -> None:
    fake.lost = staticmethod(lambda device: True)
    assert swept(tmp_path, [make_case(device="cuda")], gpus(1)) == []


def test_another_environment_is_refused_before_anything_is_measured(
    tmp_path: Path, fake: type[FakeWorker]
) -> None:
    other = ENVIRONMENT.model_copy(update={"torch": "2.0.0"})
    folder = SweepFolder(tmp_path, None, [make_case()], [other], [])
    with pytest.raises(
        InvalidConfig, match=r"torch 2\.0\.0 there, 2\.13\.0\+cpu here; resume_force=true"
    ):
        run_cases(folder, [CPU], Settings(), MEASURING, None)
    assert fake.seen == []
    assert list(tmp_path.iterdir()) == []


def test_a_case_of_a_cluster_joins_its_folder(tmp_path: Path, fake: type[FakeWorker]) -> None:
    first = started([make_case(), make_case(seq=32)], tmp_path, "python run.py")
    first.write_manifest()
    before = (first.path / "sweep.json").read_text()
    for case in first.todo:
        run_cases(joined(case, first.path, force=False), [CPU], Settings(), MEASURING, None)
    assert len(read_sweep(first.path)[0]) == 2
    assert (first.path / "sweep.json").read_text() == before


def repeats_of(tmp_path: Path, cases: Sequence[Case], devices: Sequence[Device], **settings: Any) -> Any:
    """Slugs of the sentinels, in the order of their repeats."""
    swept(tmp_path, cases, devices, **settings)
    (folder,) = (tmp_path / "out").iterdir()
    repeats, skipped = read_repeats(folder)
    assert skipped == []
    return repeats


def test_a_sentinel_of_each_kind_is_measured_again_at_the_end(
    tmp_path: Path, fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome_of(case: Case, measured: int) -> Outcome:
        launch_bound = case.seq < 32
        return make_record(
            case, device_ms=case.seq / 10, host_ms=case.seq / (5 if launch_bound else 20)
        ).outcome

    monkeypatch.setattr(faults, "outcome_of", outcome_of)
    cases = [make_case(device="cuda", seq=seq) for seq in (8, 16, 32, 64)]
    repeats = repeats_of(tmp_path, cases, gpus(1), repeats=3)
    assert {(r.case.seq, r.outcome.kind) for r in repeats} == {
        (8, Kind.LAUNCH_BOUND),
        (32, Kind.GPU_BOUND),
    }
    assert len(repeats) == 6
    assert [slug for _, slug in fake.seen[:4]] == [case.slug for case in cases]


def test_in_a_long_sweep_sentinels_are_measured_between_too(
    tmp_path: Path, fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BETWEEN_SENTINELS_S", 0.0)
    first, second = (make_case(seq=seq) for seq in (8, 16))
    repeats_of(tmp_path, [first, second], [CPU], repeats=1)
    assert [slug for _, slug in fake.seen] == [one.slug for one in (first, first, second, first, first)]


def test_every_gpu_has_sentinels_of_its_own(tmp_path: Path, fake: type[FakeWorker]) -> None:
    cases = [make_case(device="cuda", seq=seq) for seq in range(8, 72, 8)]
    repeats = repeats_of(tmp_path, cases, gpus(2), repeats=2)
    assert len({(r.key, r.environment.gpu_uuid) for r in repeats}) == 2
    assert len(repeats) == 4


@pytest.mark.parametrize(("seqs", "repeats"), [((8,), 3), ((8, 16), 0)], ids=["one-case", "not-asked"])
def test_no_sentinel_where_nothing_is_compared_or_none_is_asked_for(
    tmp_path: Path, fake: type[FakeWorker], seqs: tuple[int, ...], repeats: int
) -> None:
    cases = [make_case(seq=seq) for seq in seqs]
    assert repeats_of(tmp_path, cases, [CPU], repeats=repeats) == []
    assert len(fake.seen) == len(seqs)


def test_a_job_of_a_cluster_measures_its_one_case_once(tmp_path: Path, fake: type[FakeWorker]) -> None:
    cases = [make_case(seq=8), make_case(seq=16)]
    first = started(cases, tmp_path / "out", "python run.py")
    first.write_manifest()
    run_cases(joined(cases[0], first.path, force=False), [CPU], Settings(repeats=3), MEASURING, None)
    assert len(fake.seen) == 1


def test_a_sentinel_that_fails_the_second_time_is_a_note_and_no_fault(
    tmp_path: Path, fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    good = faults.outcome_of

    def outcome_of(case: Case, measured: int) -> Outcome:
        failed = Outcome(status=Status.FAILED, reason="no more")
        return good(case, measured) if measured < 2 else failed

    monkeypatch.setattr(faults, "outcome_of", outcome_of)
    cases = [make_case(seq=8), make_case(seq=16)]
    assert repeats_of(tmp_path, cases, [CPU], repeats=1) == []
    assert "ended as failed: no more" in capsys.readouterr().err


def test_a_repeated_case_runs_once_with_a_notice() -> None:
    cases, notices = distinct([make_case(), make_case(seq=32), make_case(), make_case(model="same")])
    assert [case.seq for case in cases] == [16, 32]
    assert notices == [f"{make_case().slug} is asked for 2 times more; it runs once"]


def test_order_is_stable_and_timing_keeps_its_place() -> None:
    cases = [make_case(seed=seed, timing=TIMING) for seed in (3, 1, 2)]
    assert [case.seed for case in ordered(cases)] == [3, 1, 2]

"""A sweep from its cases to its exit code: every case has its record, whatever befell it.

Each device is a lane: a thread that holds the device's lease, takes the next case, has a worker
measure it, and makes the record durable before it takes another. The main thread only waits.
"""

import contextlib
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from attnscale import record as records
from attnscale.case import Case
from attnscale.measure.cost import costs
from attnscale.measure.worker import Answer
from attnscale.record import Environment, Outcome, Record, Status, log_path, make_folder, now
from attnscale.report.tracker import Tracker
from attnscale.sweep.devices import LEASES, Device, lease
from attnscale.sweep.folder import SweepFolder
from attnscale.sweep.progress import SweepProgress
from attnscale.sweep.sentinels import Sentinels
from attnscale.sweep.worker import InlineWorker, Measuring, ProcessWorker, Stopped, Worker, WorkerLost

EXIT_OK = 0
EXIT_FAILED_CASES = 1
EXIT_INTERRUPTED = 130

BETWEEN_SENTINELS_S = 300.0
"""In a sweep that is longer than this, they are measured between its cases as well."""

INLINE = "inline"
FRESH = "fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a sweep runs its cases."""

    isolation: str = "worker"
    """worker, fresh or inline."""
    case_timeout_s: float = 600.0
    skip_hopeless: bool = False
    strict_gpu: bool = False
    repeats: int = 0
    """Times that the sentinels are measured again at the end."""
    keep_trace: bool = False
    """Whether the trace of each case's kernels stays beside its record."""
    leases: Path = LEASES
    """Folder of the lock files."""


def distinct(cases: Iterable[Case]) -> tuple[list[Case], list[str]]:
    """Each case once, and a notice for each that was asked for again."""
    kept: dict[str, Case] = {}
    repeated: Counter[str] = Counter()
    for case in cases:
        if case.key in kept:
            repeated[case.key] += 1
        kept.setdefault(case.key, case)
    notices = []
    for key, count in repeated.items():
        times = "once" if count == 1 else f"{count} times"
        notices.append(f"{kept[key].slug} is asked for {times} more; it runs once")
    return list(kept.values()), notices


def ordered(cases: Sequence[Case]) -> list[Case]:
    """From little work to much, backends innermost; else as asked for.

    Results come early, a case that runs out of memory comes before those that need more, and what is
    compared was measured within the same minute: a card that drifts does so for all backends alike.
    """
    first_asked: dict[str, int] = {}
    for case in cases:
        first_asked.setdefault(_shape_of(case), len(first_asked))
    return sorted(
        cases, key=lambda case: (costs(case, ran=None).useful_flops, first_asked[_shape_of(case)])
    )


def _shape_of(case: Case) -> str:
    return replace(case, backend="auto").key


def run_cases(
    folder: SweepFolder,
    devices: Sequence[Device],
    settings: Settings,
    measuring: Measuring,
    tracker: Tracker | None,
) -> None:
    """Measure every case that is to do, each with its record.

    KeyboardInterrupt on Ctrl-C and on SIGTERM, when all workers have ended. InvalidConfig when the
    environment may not join the folder's records, OSError when a record can't be written.
    """
    with SweepProgress(folder.todo, Console(stderr=True)) as progress, _sigterm_interrupts():
        for notice in folder.notices:
            progress.notice(notice)
        if not (folder.held and folder.todo):  # nothing there that what is measured might not join
            folder.write_manifest()
        run = _Run(folder, settings, measuring, tracker, progress)
        for kind in ("cuda", "cpu"):  # one after the other: a busy CPU launches late
            run.on([device for device in devices if device.kind == kind], kind)


def close(folder: Path, tracker: Tracker | None, *, interrupted: bool = False) -> int:
    """Report, W&B and table from the records on disk; the exit code of the sweep."""
    from attnscale.report import terminal
    from attnscale.report.build import ReportError, build_report

    try:
        built = build_report(folder)
    except ReportError as error:
        print(f"no report: {error}", file=sys.stderr)
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED_CASES
    if tracker:
        tracker.log_report(folder.name, built.table, list(built.figures))
    terminal.show(built.records, built.table, built.skipped, folder)
    for note in built.notes:
        print(note)
    print(f"report: {built.page}")
    if interrupted:
        return EXIT_INTERRUPTED
    good = all(record.outcome.status.expected for record in built.records)
    return EXIT_OK if good and not built.not_run and not built.skipped else EXIT_FAILED_CASES


class _Run:
    """The state that the lanes share."""

    def __init__(
        self,
        folder: SweepFolder,
        settings: Settings,
        measuring: Measuring,
        tracker: Tracker | None,
        progress: SweepProgress,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.measuring = measuring
        self.tracker = tracker
        self.progress = progress
        self.stop = threading.Event()
        self.out_of_memory: list[Case] = []
        self.todo: deque[Case] = deque()
        self.lanes = 1
        self._admitted = False
        self._lock = threading.Lock()

    def on(self, devices: Sequence[Device], kind: str) -> None:
        """Run the cases of one kind of device, one at a time on each of ``devices``."""
        self.todo = deque(case for case in ordered(self.folder.todo) if case.device == kind)
        if not self.todo:
            return
        if self.settings.isolation == INLINE:
            self._lane(devices[0])  # in the main thread, where a debugger expects it
            return
        self.lanes = min(len(devices), len(self.todo))
        with ThreadPoolExecutor(max_workers=len(devices), thread_name_prefix="lane") as executor:
            lanes = [executor.submit(self._lane, device) for device in devices]
            try:
                wait(lanes, return_when=FIRST_EXCEPTION)
            finally:
                if not all(lane.done() for lane in lanes):  # Ctrl-C, or one of them raised
                    self.stop.set()
        for lane in lanes:
            lane.result()

    def _lane(self, device: Device) -> None:
        leased = lease(
            device,
            give_up=lambda: self.stop.is_set() or not self.todo,
            waiting=self.progress.notice,
            folder=self.settings.leases,
        )
        with leased as held:
            if not held:
                return
            worker = self._worker(device)
            sentinels = Sentinels()
            due = time.monotonic() + BETWEEN_SENTINELS_S
            try:
                while not self.stop.is_set() and (case := self._next()) is not None:
                    sentinels.consider(self._one(case, worker))
                    if time.monotonic() >= due:
                        self._again(sentinels, 1, device, worker)
                        due = time.monotonic() + BETWEEN_SENTINELS_S
                self._again(sentinels, self.settings.repeats, device, worker)
            except WorkerLost as error:
                self.progress.notice(f"{device}: no worker could be started: {error}")
            except Stopped:
                pass
            finally:
                worker.end()

    def _worker(self, device: Device) -> Worker:
        if self.settings.isolation == INLINE:
            return InlineWorker(device, self.measuring, keep_trace=self.settings.keep_trace)
        return ProcessWorker(
            device,
            self.measuring,
            timeout_s=self.settings.case_timeout_s,
            keep=self.settings.isolation != FRESH,
            keep_trace=self.settings.keep_trace,
            stop=self.stop,
        )

    def _next(self) -> Case | None:
        try:
            return self.todo.popleft()
        except IndexError:
            return None

    def _again(self, sentinels: Sentinels, rounds: int, device: Device, worker: Worker) -> None:
        """Measure them again, for the noise between runs. One that fails now is a note, no fault."""
        manifest = self.folder.manifest
        compares = manifest is not None and len(manifest.cases) > 1
        cases = sentinels.chosen() if compares and self.settings.repeats else []
        if cases:
            names = ", ".join(case.slug for case in cases)
            times = "once" if rounds == 1 else f"{rounds} times"
            self.progress.notice(f"{device}: again {times}, for the noise between runs: {names}")
        for case in cases * rounds:
            if self.stop.is_set():
                return
            environment = worker.ready()
            foreign = worker.foreign()
            answer = worker.measure(case, log_path(self.folder.path, case))
            foreign = _merged(foreign, worker.foreign())
            outcome = answer.outcome
            if outcome.status is Status.OK:
                beside = _beside(environment, foreign, self.settings.isolation)
                records.write_repeat(self._record(case, answer, beside), self.folder.path)
            else:
                self.progress.notice(f"again, {case.slug} ended as {outcome.status}: {outcome.reason}")

    def _one(self, case: Case, worker: Worker) -> Record:
        """Measure, write, track, show."""
        self.progress.begins(case)
        try:
            environment = worker.ready()
        except WorkerLost:
            self.todo.appendleft(case)  # for another lane, or for a resumed sweep
            raise
        began = time.monotonic()
        self._admit(environment)
        log = log_path(self.folder.path, case)
        make_folder(log.parent)
        foreign = worker.foreign()
        answer = self._unrun(case, foreign) or self._measured(case, worker, log)
        foreign = _merged(foreign, worker.foreign())
        if answer.outcome.status is Status.OOM and answer.outcome.inferred_from is None:
            self.out_of_memory.append(case)
        record = self._record(case, answer, _beside(environment, foreign, self.settings.isolation))
        records.write(record, self.folder.path)
        with self._lock:
            if self.tracker:
                self.tracker.log_case(record)
        self.progress.ended(record, time.monotonic() - began, self.lanes)
        return record

    def _admit(self, environment: Environment) -> None:
        with self._lock:
            self.folder.admit(environment)
            if not self._admitted:
                self.folder.write_manifest()
                self._admitted = True

    def _measured(self, case: Case, worker: Worker, log: Path) -> Answer:
        """By the worker at hand; out of memory counts only in one that has measured nothing before."""
        was_fresh = worker.fresh
        answer = worker.measure(case, log)
        if answer.outcome.status is not Status.OOM or was_fresh or self.settings.isolation == INLINE:
            return answer
        worker.end()
        worker.ready()
        again = worker.measure(case, log)
        return replace(again, outcome=again.outcome.model_copy(update={"attempts": 2}))

    def _unrun(self, case: Case, foreign: list[str] | None) -> Answer | None:
        """The outcome of a case that is not to be measured."""
        outcome = None
        if self.settings.strict_gpu and foreign:
            reason = f"strict_gpu=true, and others compute on this GPU: {', '.join(foreign)}"
            outcome = Outcome(status=Status.FAILED, reason=reason)
        elif self.settings.skip_hopeless:
            smaller = next((one for one in self.out_of_memory if _needs_more(case, than=one)), None)
            if smaller is not None:
                reason = f"inferred, not run (skip_hopeless=true): {smaller.slug} ran out of memory"
                outcome = Outcome(status=Status.OOM, reason=reason, inferred_from=smaller.key)
        return Answer(outcome=outcome, started_at=now(), ended_at=now()) if outcome else None

    def _record(self, case: Case, answer: Answer, environment: Environment) -> Record:
        return Record(
            sweep_id=self.folder.path.name,
            key=case.key,
            slug=case.slug,
            case=case,
            outcome=answer.outcome,
            costs=costs(case, ran=answer.outcome.backend_chosen),
            environment=environment,
            started_at=answer.started_at,
            ended_at=answer.ended_at,
        )


def _needs_more(case: Case, *, than: Case) -> bool:
    """Whether it is the same but for a larger seq or batch, or both."""
    same = replace(case, seq=than.seq, batch=than.batch)
    larger = case.seq >= than.seq and case.batch >= than.batch and case.tokens > than.tokens
    return same.key == than.key and larger


def _merged(before: list[str] | None, after: list[str] | None) -> list[str] | None:
    if before is None and after is None:
        return None
    return list(dict.fromkeys([*(before or []), *(after or [])]))


def _beside(environment: Environment, foreign: list[str] | None, isolation: str) -> Environment:
    """The worker's environment with what the sweep alone knows."""
    nulls = dict(environment.nulls)
    if foreign is None:
        on_cpu = environment.gpu_uuid is None
        inline = isolation == INLINE
        why = "device is cpu" if on_cpu else "isolation=inline" if inline else "NVML could not say"
        nulls["foreign_processes"] = why
    return environment.model_copy(
        update={"foreign_processes": foreign, "isolation": isolation, "nulls": nulls}
    )


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM, as a scheduler sends it, ends a sweep like Ctrl-C: workers gone, report written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

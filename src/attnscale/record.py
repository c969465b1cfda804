"""The record: what one case gave, durable on disk, and the only bridge from measuring to reading.

One ``record.json`` a case, at ``SWEEP/cases/<slug>-<key>/record.json``, written whole or not at all.
Numbers carry their unit in their name. A number that could not be had is null and has its reason in
``nulls``. Raw samples are kept; whatever is derived from them can be derived again. This module is
one of the shared words: it imports no room of the project and needs no torch.
"""

import enum
import hashlib
import json
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator
from pydantic_core import from_json

from attnscale.case import Case, Timing
from attnscale.profile import Profile

SCHEMA_VERSION = 4
READABLE_SCHEMAS = (1, 2, 3, 4)
"""2 added log_tail, attempts, inferred_from, host, isolation and foreign_processes; 3 device and host
times, settling, accuracy, clocks, measured peaks and parts of memory, and another Timing;
4 what ran."""
RECORD_NAME = "record.json"
LOG_NAME = "log.txt"
CASES_FOLDER = "cases"
REPEATS_FOLDER = "repeats"


class Status(enum.StrEnum):
    """How a case ended."""

    OK = "ok"
    OOM = "oom"
    UNSUPPORTED = "unsupported"
    MISMATCH = "mismatch"
    WRONG = "wrong"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"

    @property
    def expected(self) -> bool:
        """Whether a sweep with such a case still exits with 0: an answer, not a fault."""
        return self in (Status.OK, Status.OOM, Status.UNSUPPORTED)


class Kind(enum.StrEnum):
    """What holds a forward up. Cases of one kind share their noise from run to run."""

    LAUNCH_BOUND = "launch-bound"
    """host_ms > device_ms: the GPU waits for launches."""
    GPU_BOUND = "GPU-bound"
    CPU = "CPU"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Metrics(_Frozen):
    """What was measured. Null where it could not be; then ``Outcome.nulls`` says why.

    The ends of each interval are those of the median, at 95%, by order statistics.
    """

    latency_ms: FiniteFloat | None = None
    """Median time that a caller waits for one forward, the queue empty before."""
    latency_ci_low_ms: FiniteFloat | None = None
    latency_ci_high_ms: FiniteFloat | None = None
    device_ms: FiniteFloat | None = None
    """Median over windows of the GPU's own time for one forward, taken as device_timed_by says."""
    device_ci_low_ms: FiniteFloat | None = None
    device_ci_high_ms: FiniteFloat | None = None
    host_ms: FiniteFloat | None = None
    """Median time that the CPU takes to launch one forward, the queue empty before."""
    host_ci_low_ms: FiniteFloat | None = None
    host_ci_high_ms: FiniteFloat | None = None
    first_call_ms: FiniteFloat | None = None
    """The first forward of the case, with cuDNN's plan building. The first case of a worker also pays
    for starting cuBLAS; kernels that were loaded before are not loaded again."""
    tokens_per_s: FiniteFloat | None = None
    """batch * seq / latency."""
    rel_error: FiniteFloat | None = None
    """Attention against its fp32 reference at the case's shape, worst row or head; accuracy.py."""
    forward_rel_error: FiniteFloat | None = None
    """Logits of the whole forward, at a bounded size, against the fp32 forward, worst row."""
    weights_allocated_bytes: int | None = None
    """What the model's weights hold."""
    activations_peak_bytes: int | None = None
    """Most that one forward held beyond what was there before it: activations and scratch."""
    attention_peak_bytes: int | None = None
    """Most that one attention call held beyond its inputs: output and scratch, as a score matrix."""
    peak_allocated_bytes: int | None = None
    """Most that tensors held during a warm forward, weights included, above the baseline."""
    peak_reserved_bytes: int | None = None
    """Most that the allocator held from the driver, above the baseline."""
    baseline_allocated_bytes: int | None = None
    """What was allocated before the case began; other than 0 means that an earlier case leaked."""
    sm_clock_mhz: FiniteFloat | None = None
    """Median over the windows of device_ms, as power_w and temperature_c."""
    power_w: FiniteFloat | None = None
    temperature_c: FiniteFloat | None = None
    guess_device_ms: FiniteFloat | None = None
    """device_ms by the roofline of the measured peaks, noted before anything was timed: the longer of
    executed FLOPs over the matmul's and least traffic over the copy's."""
    matmul_flops_per_s: FiniteFloat | None = None
    """The fastest square matrix product of the case's dtype, measured on this card on random data."""
    copy_bytes_per_s: FiniteFloat | None = None
    """A copy on this device, bytes read and written."""


class Window(_Frozen):
    """A stretch of forwards back to back, and the card right after it. Null where NVML can't say."""

    ms: FiniteFloat
    """Mean time of one forward."""
    sm_clock_mhz: int | None = None
    power_w: FiniteFloat | None = None
    temperature_c: int | None = None
    throttle: list[str] = []
    """Why the clock is held down, as NVML names it."""


class Settling(_Frozen):
    """How sampling was prepared."""

    settled: bool
    """Whether clocks, power and the rolling median were stable when sampling began."""
    why: str | None
    """What was not; null when settled."""
    seconds: FiniteFloat
    windows: list[Window]


class Costs(_Frozen):
    """Closed-form work of one forward, from the case alone; conventions in measure/cost.py."""

    params: int
    """Weights of the model, count."""
    weight_bytes: int
    """The same in bytes of the run's dtype."""
    useful_flops: int
    """Floating-point operations the mathematics needs: the causal half of attention only."""
    executed_flops: int | None
    """Operations the backend runs: naive and math compute the full square. Null when backend=auto
    ended before PyTorch's choice was known."""
    min_bytes: int
    """Fewest bytes through device memory: weights, tokens, logits and Q, K, V, O once each."""


class Outcome(_Frozen):
    """How a case ended and what it gave."""

    status: Status
    reason: str | None = None
    """One line; null exactly when status is ok."""
    metrics: Metrics = Metrics()
    nulls: dict[str, str] = {}
    """Metric name -> why it is null."""
    latency_samples_ms: list[FiniteFloat] = []
    """In the order taken, as those of host_ms, which are of the same forwards."""
    host_samples_ms: list[FiniteFloat] = []
    device_windows: list[Window] = []
    """Of device_ms, in the order taken."""
    settling: Settling | None = None
    device_timed_by: str | None = None
    """graph (CUDA-graph replay) or profiler (union of kernel intervals)."""
    capture_refused: str | None = None
    """Why it was not a graph."""
    stopped_by: dict[str, str] = {}
    """Metric -> precision, max_seconds or max_samples: what ended its sampling."""
    spent_s: dict[str, FiniteFloat] = {}
    """Part of the case -> how long it took, seconds: peaks, check, build, first_call, memory, capture,
    settling, device, latency, profile."""
    backend_chosen: str | None = None
    """What PyTorch's dispatcher picks for these tensors under this backend's switches."""
    backend_ran: str | None = None
    """What the kernels of the profiled pass say ran; evidence/backend.py."""
    profile: Profile | None = None
    """Null with a reason in ``nulls``, as backend_ran."""
    gqa: str | None = None
    """none, native (enable_gqa) or materialised (K and V repeated to all heads)."""
    traceback: str | None = None
    """Of a failed case."""
    log_tail: str | None = None
    """The last lines that a case which is not ok, oom or unsupported left in its log."""
    attempts: int = 1
    """Workers it took: out of memory is tried once more in a fresh one before it counts."""
    inferred_from: str | None = None
    """Key of the smaller case whose lack of memory decided this one, which did not run."""

    @model_validator(mode="after")
    def _explains_itself(self) -> Self:
        if (self.reason is None) != (self.status is Status.OK):
            raise ValueError(f"status {self.status} and reason {self.reason!r} do not fit")
        evidence = {"backend_ran": self.backend_ran, "profile": self.profile}
        unexplained = [
            name
            for name, value in (self.metrics.model_dump() | evidence).items()
            if value is None and name not in self.nulls
        ]
        if self.status is Status.OK and unexplained:
            raise ValueError(f"null without a reason: {', '.join(unexplained)}")
        return self

    @property
    def kind(self) -> Kind | None:
        """What its latency hangs on; None without a number."""
        metrics = self.metrics
        if metrics.latency_ms is None:
            return None
        if metrics.host_ms is None:
            return Kind.CPU
        busy = metrics.latency_ms if metrics.device_ms is None else metrics.device_ms
        return Kind.LAUNCH_BOUND if metrics.host_ms > busy else Kind.GPU_BOUND


class Environment(_Frozen):
    """Where a case ran. ``nulls`` says why a part is unknown."""

    device_name: str
    gpu_uuid: str | None
    gpu_memory_bytes: int | None
    driver: str | None
    cuda: str | None
    cudnn: int | None
    torch: str
    python: str
    packages: dict[str, str]
    threads: int
    """Of torch on the CPU."""
    sdpa_switches: dict[str, bool]
    """Which SDPA backends PyTorch may use in this process, before a case pins one."""
    fp16_bf16_reduction_math: bool
    """Whether SDPA math keeps half precision instead of its fp32 upcast."""
    matmul_precision: str
    """torch.get_float32_matmul_precision(): highest means that TF32 is off."""
    flash_implementation: str | None
    """FA3 or FA4 when activated; null is PyTorch's own FlashAttention-2."""
    git_commit: str | None
    command: str
    nulls: dict[str, str]
    host: str | None = None
    """Name of the machine."""
    isolation: str | None = None
    """worker (a process that measures case after case), fresh (one a case) or inline (none)."""
    foreign_processes: list[str] | None = None
    """Compute processes of others seen on the GPU just before or after the case."""


class Record(_Frozen):
    """One case, whole."""

    schema_version: int = SCHEMA_VERSION
    sweep_id: str
    key: str
    slug: str
    case: Case
    outcome: Outcome
    costs: Costs
    environment: Environment
    started_at: str
    """ISO 8601, UTC."""
    ended_at: str

    def case_config(self) -> dict[str, Any]:
        """The resolved case as plain JSON values, nested as the case is."""
        config = self.model_dump(mode="json", include={"case"})["case"]
        assert isinstance(config, dict)
        return config


class Skipped(_Frozen):
    """A record that could not be read."""

    path: Path
    why: str
    foreign: bool = False
    """Whether it is whole, of another release."""


def now() -> str:
    """The time as records have it: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def record_path(sweep: Path, case: Case) -> Path:
    """Where the record of ``case`` lies in the folder of its sweep."""
    return sweep / CASES_FOLDER / case.folder_name / RECORD_NAME


def log_path(sweep: Path, case: Case) -> Path:
    """Where all that was printed while ``case`` was measured lies; there is no file if it was silent."""
    return record_path(sweep, case).with_name(LOG_NAME)


def write(record: Record, sweep: Path) -> Path:
    """Write atomically and durably: after a crash the record is there whole or not at all."""
    path = record_path(sweep, record.case)
    make_folder(path.parent)
    write_atomically(path, record.model_dump_json(indent=1) + "\n")
    return path


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step, synced to disk.

    OSError with the path when it can't be, a full disk for one; what was there before is intact.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def make_folder(folder: Path) -> None:
    """Make it with its parents, synced to disk; FileExistsError is not raised."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make its entries durable: a file's own sync doesn't."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class ForeignSchema(ValueError):
    """A record of another release, whole but not for this one."""


def read(path: Path) -> Record:
    """Read one record. ValueError with one line when it is damaged, ForeignSchema when it is foreign."""
    try:
        raw = json_object(path.read_bytes())
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    version = raw.get("schema_version")
    if isinstance(version, int) and version not in READABLE_SCHEMAS:
        reads = f"{READABLE_SCHEMAS[0]} to {READABLE_SCHEMAS[-1]}"
        raise ForeignSchema(f"schema_version {version}, this release reads {reads}")
    try:
        record = Record.model_validate(_upgraded(raw))
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"schema_version {version}: {type(error).__name__}: {error}") from error
    if record.key != record.case.key:
        raise ValueError(f"key {record.key} is not that of its case, {record.case.key}")
    return record


def json_object(data: bytes) -> dict[str, Any]:
    """The object that a file holds. ValueError with one line when it holds none."""
    try:
        raw = from_json(data)
    except ValueError as error:
        raise ValueError(f"the file: Invalid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError("the file: it should be an object")  # noqa: TRY004 - one kind for all damage
    return raw


def _upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """A record of an earlier schema in the words of this one: what was not measured is null."""
    if raw.get("schema_version") not in BEFORE_4:
        return raw
    unseen = dict.fromkeys(("profile", "backend_ran"), _NO_PROFILE)
    if raw["schema_version"] not in BEFORE_3:
        outcome = raw["outcome"]
        return raw | {"outcome": outcome | {"nulls": unseen | outcome["nulls"]}}
    outcome = dict(raw["outcome"])
    outcome["latency_samples_ms"] = outcome.pop("samples_ms")
    unmeasured = unseen | dict.fromkeys(set(Metrics.model_fields) - set(outcome["metrics"]), _NOT_THEN)
    return raw | upgraded_case(raw) | {"outcome": outcome | {"nulls": unmeasured | outcome["nulls"]}}


BEFORE_3 = (1, 2)
BEFORE_4 = (1, 2, 3)
_NO_PROFILE = "no kernels were read by releases that wrote schema 1 to 3"
_NOT_THEN = "not measured by releases that wrote schema 1 and 2"


def upgraded_case(raw: dict[str, Any]) -> dict[str, Any]:
    """``case`` and its ``key`` of schema 1 or 2 as schema 3 has them: a fixed number of samples."""
    timing = raw["case"]["timing"]
    same = {"min_samples": timing["samples"], "max_seconds": timing["max_seconds"]}
    timing = same | {"settle_seconds": 0.0, "precision": 0.0, "flush_l2": False}
    case = raw["case"] | {"timing": timing}
    if raw["key"] != _key_before_3(raw["case"]):
        return {"case": case}  # the key is wrong, and will be refused as such
    return {"case": case, "key": Case(**case | {"timing": Timing(**timing)}).key}


def _key_before_3(case: dict[str, Any]) -> str:
    fields = {name: value for name, value in case.items() if name != "model"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def first_problem(error: ValidationError) -> str:
    """The first thing that was wrong, in one line."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the file"
    return f"{place}: {first['msg']}"


def read_sweep(sweep: Path) -> tuple[list[Record], list[Skipped]]:
    """Every record of a sweep in the order measured, and every one that can't be read, named."""
    return _read_all(sweep / CASES_FOLDER)


def read_repeats(sweep: Path) -> tuple[list[Record], list[Skipped]]:
    """As ``read_sweep``, the cases that were measured again for the noise between runs."""
    return _read_all(sweep / REPEATS_FOLDER)


def write_repeat(record: Record, sweep: Path) -> Path:
    """As ``write``, another measurement of a case that has its record."""
    parent = sweep / REPEATS_FOLDER
    taken = len(list(parent.glob(f"{record.case.folder_name}-*")))
    path = parent / f"{record.case.folder_name}-{taken + 1}" / RECORD_NAME
    make_folder(path.parent)
    write_atomically(path, record.model_dump_json(indent=1) + "\n")
    return path


def _read_all(folder: Path) -> tuple[list[Record], list[Skipped]]:
    records: list[Record] = []
    skipped: list[Skipped] = []
    for path in sorted(folder.glob(f"*/{RECORD_NAME}")):
        try:
            records.append(read(path))
        except ValueError as error:
            why = " ".join(str(error).split())
            skipped.append(Skipped(path=path, why=why, foreign=isinstance(error, ForeignSchema)))
    records.sort(key=lambda record: record.started_at)
    return records, skipped

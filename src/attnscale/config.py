"""The typed schema of the configuration, the way from it to a Case, and errors in one line.

conf/config.yaml and its groups hold the values; this file holds their types and units. Types are
Hydra's to check while it composes; the rules of values are Case's. Whatever goes wrong becomes one
line: key, value, what is allowed (``one_line``). Nothing here loads torch.
"""

import difflib
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import get_args, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override, QuotedString, Transformer
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnscale.case import BACKENDS, Case, InvalidConfig, Timing
from attnscale.manifest import Guess
from attnscale.record import now


class Arch(Enum):
    """Which transformer block."""

    gpt = "gpt"
    llama = "llama"


class Dtype(Enum):
    """Of weights and activations."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Device(Enum):
    """Where the forward runs; auto is cuda where there is one, else cpu."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


class Isolation(Enum):
    """worker: one process a GPU measures case after case, replaced after a fault. fresh: a new process
    for every case. inline: in this process, for debuggers; nothing is survived and nothing times out.
    """

    worker = "worker"
    fresh = "fresh"
    inline = "inline"


class Retry(Enum):
    """Which cases that have a record a resumed sweep measures again."""

    none = "none"
    failed = "failed"


class Trace(Enum):
    """What becomes of the trace from which each case's kernels are read."""

    none = "none"
    keep = "keep"
    """Compressed, beside the record; and with W&B as a profile artifact of the run."""


class TrackerName(Enum):
    """Where results go besides the sweep's folder."""

    wandb = "wandb"
    none = "none"


class TrackerMode(Enum):
    """offline makes no network connection; online is time-boxed and falls back to offline."""

    offline = "offline"
    online = "online"


@dataclass(kw_only=True)
class TimingConfig:
    """Group timing/: how a case is sampled; see case.Timing."""

    settle_seconds: float = 1.0
    precision: float = 0.005
    min_samples: int = 10
    max_seconds: float = 0.7
    flush_l2: bool = False


@dataclass(kw_only=True)
class TrackerConfig:
    """Group tracker/: where results go besides the sweep's folder."""

    name: TrackerName = TrackerName.none
    """wandb or none."""
    mode: TrackerMode = TrackerMode.offline
    """Whether W&B may use the network."""
    project: str = "attnscale"
    """W&B project."""
    entity: str | None = None
    """W&B team or user; null is the default one of the key."""
    online_timeout_s: int = 20
    """Longest wait for W&B's service before falling back to offline, seconds."""

    def __post_init__(self) -> None:
        if not 1 <= self.online_timeout_s <= 3600:
            allowed = "a whole number of seconds from 1 to 3600 is needed"
            raise InvalidConfig("tracker.online_timeout_s", self.online_timeout_s, allowed)
        if not 1 <= len(self.project) <= 128 or set(self.project) & set("/\\#?%:"):
            allowed = "W&B takes 1 to 128 characters without / \\ # ? % :"
            raise InvalidConfig("tracker.project", self.project, allowed)


@dataclass(kw_only=True)
class GuessConfig:
    """What you expect: guess first, then look. The report opens with where it was wrong."""

    fastest: str | None = None
    """Backend, at every shape."""
    ratio: str | None = None
    """math/naive_inplace:3.7 says that math takes 3.7 times as long; several apart by commas."""
    kernels: str | None = None
    """math:20,naive:5 says that an attention call launches 20 kernels and 5."""

    def __post_init__(self) -> None:
        if self.fastest is not None and self.fastest not in BACKENDS:
            raise InvalidConfig("guess.fastest", self.fastest, f"must be one of {', '.join(BACKENDS)}")
        for key, names, number in (("ratio", 2, r"\d+(\.\d+)?"), ("kernels", 1, r"\d+")):
            given = getattr(self, key)
            for one in [] if given is None else given.split(","):
                left, _, right = one.strip().partition(":")
                known = [name in BACKENDS for name in left.split("/")]
                if known != [True] * names or not re.fullmatch(number, right) or not float(right):
                    example = "math/naive_inplace:3.7" if names == 2 else "math:20"
                    why = f"such as {example} is needed, several apart by commas, with backends of "
                    raise InvalidConfig(f"guess.{key}", given, why + ", ".join(BACKENDS))


@dataclass(kw_only=True)
class Config:
    """The whole configuration: one point, and what is done with its result."""

    backend: str = "flash"
    """Attention backend: a file of conf/backend."""
    model: str = "gpt"
    """Preset of the axes: a file of conf/model."""
    arch: Arch = Arch.gpt
    """Transformer block."""
    seq: int = 1024
    """Tokens in each sequence."""
    batch: int = 1
    """Sequences in one forward."""
    heads: int = 8
    """Query heads."""
    kv_heads: int | None = None
    """Key and value heads; null = heads."""
    head_dim: int = 64
    """Width of a head; d_model = heads * head_dim."""
    layers: int = 4
    """Transformer blocks."""
    ffn_dim: int | None = None
    """Hidden width of the MLP; null = 4 * d_model."""
    vocab: int = 8192
    """Entries of the vocabulary."""
    dtype: Dtype = Dtype.bfloat16
    """Of weights and activations."""
    causal: bool = True
    """Whether a token sees only itself and earlier ones."""
    device: Device = Device.auto
    """Where the forward runs."""
    seed: int = 0
    """Of weights and input tokens."""
    output_dir: str | None = None
    """Folder that gets a folder a sweep; null = outputs/ beside run.py."""
    gpus: str = "all"
    """all, or indices such as 0,2 among the visible GPUs; each measures one case at a time."""
    isolation: Isolation = Isolation.worker
    """What stands between a case and its neighbours."""
    case_timeout_s: float = 600.0
    """A case without a result by then ends as timeout, seconds."""
    skip_hopeless: bool = False
    """Whether a case larger only in seq or batch than one that ran out of memory counts as oom unrun."""
    repeats: int = 3
    """Times that a sentinel of each kind is measured again, for the noise between runs; 0: unknown."""
    trace: Trace = Trace.none
    """Whether the trace of each case's kernels is kept."""
    strict_gpu: bool = False
    """Whether a case fails, instead of being measured, beside another process on its GPU."""
    resume: str | None = None
    """Folder of a sweep to go on with, or latest; only what is missing there runs."""
    retry: Retry = Retry.none
    """failed measures again what ended otherwise than ok, oom or unsupported in the resumed sweep."""
    resume_force: bool = False
    """Whether to resume although the GPU, torch or the records' schema differ."""
    timing: TimingConfig = field(default_factory=TimingConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    guess: GuessConfig = field(default_factory=GuessConfig)

    def __post_init__(self) -> None:
        if not 0 < self.case_timeout_s < 7 * 86400:
            allowed = "a number of seconds above 0 and below a week is needed"
            raise InvalidConfig("case_timeout_s", self.case_timeout_s, allowed)
        if not 0 <= self.repeats <= 1000:
            raise InvalidConfig("repeats", self.repeats, "a whole number from 0 to 1000 is needed")
        if not re.fullmatch(r"all|\d+(,\d+)*", self.gpus):
            raise InvalidConfig("gpus", self.gpus, "all or indices such as 0,2 are needed")


OF_THE_SWEEP = (
    "gpus",
    "isolation",
    "case_timeout_s",
    "skip_hopeless",
    "repeats",
    "trace",
    "strict_gpu",
    "resume",
    "retry",
    "resume_force",
    "output_dir",
    "tracker",
    "guess",
)
"""What a sweep has once. Every other key is an axis."""
LISTS = ("gpus", "guess.ratio", "guess.kernels")
"""Of these the ones whose value may hold commas."""


def is_axis(key: str) -> bool:
    """Whether ``key`` of an override, such as seq or +timing.precision, belongs to a point."""
    return key.lstrip("+~").partition(".")[0] not in (*OF_THE_SWEEP, "hydra")


def register() -> None:
    """Make the schema known to Hydra under the name that conf/config.yaml starts from."""
    ConfigStore.instance().store(name="schema", node=Config, provider="attnscale")


def to_config(composed: DictConfig) -> Config:
    """The typed configuration. InvalidConfig for a key put in by ``+key=`` or taken out by ``~key``."""
    schema = OmegaConf.structured(Config)
    for prefix, node, known in [
        ("", composed, schema),
        *((f"{name}.", composed.get(name) or {}, schema[name]) for name in _GROUPS),
    ]:
        for key in map(str, node):
            if key not in known:
                raise InvalidConfig(f"{prefix}{key}", node[key], _no_such_key(f"{prefix}{key}"))
        for key in map(str, known):
            if key not in node:
                raise InvalidConfig(f"~{prefix}{key}", None, "a key can't be taken out")
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    return config


def to_guess(config: Config) -> Guess | None:
    """What was guessed on the command line; None when nothing was."""
    guess = config.guess
    if guess.fastest is None and guess.ratio is None and guess.kernels is None:
        return None
    return Guess(
        at=now(),
        fastest=guess.fastest,
        ratio={names: float(text) for names, text in _pairs(guess.ratio)},
        kernels={name: int(text) for name, text in _pairs(guess.kernels)},
    )


def _pairs(text: str | None) -> list[tuple[str, str]]:
    parts = [one.strip().partition(":") for one in text.split(",")] if text else []
    return [(left, right) for left, _, right in parts]


def to_case(config: Config, *, device: str) -> Case:
    """The point it describes, on ``device`` (cuda or cpu). InvalidConfig when there is none."""
    timing = config.timing
    return Case(
        model=config.model,
        arch=config.arch.value,
        backend=config.backend,
        seq=config.seq,
        batch=config.batch,
        heads=config.heads,
        kv_heads=config.heads if config.kv_heads is None else config.kv_heads,
        head_dim=config.head_dim,
        layers=config.layers,
        ffn_dim=4 * config.heads * config.head_dim if config.ffn_dim is None else config.ffn_dim,
        vocab=config.vocab,
        dtype=config.dtype.value,
        causal=config.causal,
        device=device,
        seed=config.seed,
        timing=Timing(
            settle_seconds=float(timing.settle_seconds),
            precision=float(timing.precision),
            min_samples=timing.min_samples,
            max_seconds=float(timing.max_seconds),
            flush_l2=timing.flush_l2,
        ),
    )


def refuse(override: Override) -> None:
    """Refuse what Hydra lets pass and what would then not do what was asked.

    InvalidConfig for text where a number is due, and for several values of what a sweep has once.
    """
    key = override.get_key_element().lstrip("+")
    once = key == "sweeps" or not is_axis(key)
    if once and key not in LISTS and override.is_sweep_override():
        given = (override.input_line or "").partition("=")[2]
        raise InvalidConfig(key, given, "one value is needed, for it holds for the whole sweep")
    _refuse_text_for_numbers(override)


def _refuse_text_for_numbers(override: Override) -> None:
    """Refuse what OmegaConf would bend into a number without a word: 01024, '512', true.

    Hydra's grammar tells text from number; OmegaConf then turns either into an int.
    """
    key = override.get_key_element().lstrip("+")
    values: list[object]
    needs = _numeric_keys().get(key)
    if needs is None or override.is_delete():
        return
    if override.is_sweep_override():
        if not override.is_discrete_sweep():
            given = (override.input_line or "").partition("=")[2]
            raise InvalidConfig(key, given, "list the values, as in 1024,2048")
        values = list(override.sweep_iterator(transformer=Transformer.identity))
    else:
        values = [override.value()]
    for value in values:
        if value is not None and type(value) not in needs:
            shown = value.text if isinstance(value, QuotedString) else value
            raise InvalidConfig(key, shown, _allowed(key))


def one_line(error: BaseException) -> str:
    """What was wrong, in one line that names the key, the value and what is allowed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OverrideParseException):
            return f"{cause.override}: key=value is needed, in Hydra's override grammar"
        if isinstance(cause, MissingConfigException) and cause.options:
            return _unknown_choice(cause)
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return _refused_by_type(error, cause.full_key)
        cause = cause.__cause__
    return re.sub(r"\s*\n\s*", "; ", str(error).strip())


_GROUPS = {"timing": TimingConfig, "tracker": TrackerConfig, "guess": GuessConfig}

_NEEDED = {
    int: "a whole number in plain digits is needed, such as 1024",
    float: "a number is needed, such as 0.5",
    bool: "true or false is needed",
    str: "a text is needed",
}


def known_keys() -> dict[str, type]:
    """Dotted key -> type of every value; int | None counts as int."""
    found: dict[str, type] = {}
    for prefix, schema in [("", Config)] + [(f"{name}.", group) for name, group in _GROUPS.items()]:
        for name, hint in get_type_hints(schema).items():
            kind = next((part for part in get_args(hint) if part is not type(None)), hint)
            if prefix or name not in _GROUPS:
                found[prefix + name] = kind
    return found


def _numeric_keys() -> dict[str, tuple[type, ...]]:
    types = {int: (int,), float: (int, float)}
    return {key: types[kind] for key, kind in known_keys().items() if kind in types}


def _allowed(key: str) -> str:
    kind = known_keys()[key]
    if issubclass(kind, Enum):
        return f"must be one of {', '.join(member.name for member in kind)}"
    return _NEEDED[kind]


def _unknown_choice(error: MissingConfigException) -> str:
    path = str(error.missing_cfg_file)
    group, _, choice = path.rpartition("/") if path.startswith("hydra/") else path.partition("/")
    return f"{group}={choice}: must be one of {', '.join(error.options or ())}"


def _refused_by_type(error: BaseException, key: str) -> str:
    override = re.search(r"(?:override |use )\+*(\S+=.*)", str(error))
    given = override.group(1) if override else key
    if key not in known_keys():
        return f"{given}: {_no_such_key(key)}"
    return f"{given}: {_allowed(key)}"


def _no_such_key(key: str) -> str:
    known = sorted({*known_keys(), *_GROUPS, "sweeps"})
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no such key; {hint}allowed: {', '.join(known)}"

"""Case: one point of a sweep, validated, frozen, with a key that is the same on every machine.

A case holds everything that changes what is measured and nothing else. Two cases with the same key
are the same measurement; the label ``model`` is left out of the key because it only names a preset.
This module is one of the shared words: it imports no room of the project.
"""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

BACKENDS = ("naive", "naive_inplace", "math", "efficient", "flash", "cudnn", "auto")
ARCHS = ("gpt", "llama")
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("cuda", "cpu")
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_SHORT_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SLUG_MAX = 80


class InvalidConfig(ValueError):
    """A value that no case can have. The message names the key, the value and what is allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        text = "" if value is None else str(value).replace("\n", " ")
        super().__init__(f"{key}={text}: {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How one case is settled and sampled."""

    settle_seconds: float
    """The device is kept busy until clocks, power and the rolling median are stable, but at most this
    long, seconds; 0 samples at once."""
    precision: float
    """Sampling ends when the 95% interval of the median is this narrow: half its width over the median.
    That of device_ms first, then that of latency_ms; 0 samples for max_seconds."""
    min_samples: int
    """Samples that are taken however long they take; 6 is the least that an interval can use."""
    max_seconds: float
    """Beyond min_samples, each of the two samplings ends after this long, seconds."""
    flush_l2: bool
    """Whether the L2 cache is overwritten before each forward that is timed."""

    def __post_init__(self) -> None:
        seconds, day = "a number of seconds", 86400
        _number("timing.settle_seconds", self.settle_seconds, f"{seconds} from 0 to below {day}", 0, day)
        _number("timing.precision", self.precision, "a fraction from 0 to below 1, such as 0.005,", 0, 1)
        _whole("timing.min_samples", self.min_samples, least=1, unit="samples")
        _number("timing.max_seconds", self.max_seconds, f"{seconds} above 0 and below {day}", 1e-9, day)
        if type(self.flush_l2) is not bool:
            raise InvalidConfig("timing.flush_l2", self.flush_l2, "true or false is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point: a transformer forward of one shape through one attention backend."""

    model: str
    """Name of the preset it came from: a label, not part of the key."""
    arch: str
    """gpt (LayerNorm, GELU, learned positions) or llama (RMSNorm, SwiGLU, rotary positions)."""
    backend: str
    """Attention backend asked for, one of BACKENDS."""
    seq: int
    """Tokens in each sequence."""
    batch: int
    """Sequences in one forward."""
    heads: int
    """Query heads of one layer."""
    kv_heads: int
    """Key and value heads of one layer; fewer than heads means GQA."""
    head_dim: int
    """Width of one head; d_model = heads * head_dim."""
    layers: int
    """Transformer blocks."""
    ffn_dim: int
    """Hidden width of the MLP."""
    vocab: int
    """Entries of the embedding and the unembedding."""
    dtype: str
    """Of weights and activations, one of DTYPES."""
    causal: bool
    """Whether a token sees only itself and earlier ones."""
    device: str
    """cuda or cpu."""
    seed: int
    """Of weights and of input tokens."""
    timing: Timing
    """How it is sampled."""

    def __post_init__(self) -> None:
        for key, unit in _COUNTS.items():
            _whole(key, getattr(self, key), least=1, unit=unit)
        _whole("seed", self.seed, least=0, unit="")
        _one_of("arch", self.arch, ARCHS)
        _one_of("backend", self.backend, BACKENDS)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("device", self.device, DEVICES)
        if type(self.causal) is not bool:
            raise InvalidConfig("causal", self.causal, "true or false is needed")
        if self.timing.flush_l2 and self.device != "cuda":
            raise InvalidConfig("timing.flush_l2", "true", "only with device=cuda")
        if self.heads % self.kv_heads:
            allowed = f"must divide heads={self.heads}: {_divisors(self.heads)}"
            raise InvalidConfig("kv_heads", self.kv_heads, allowed)
        if self.arch == "gpt" and self.kv_heads != self.heads:
            allowed = f"arch=gpt has no grouped heads: leave it null or {self.heads}"
            raise InvalidConfig("kv_heads", self.kv_heads, allowed)
        if self.arch == "llama" and self.head_dim % 2:
            raise InvalidConfig("head_dim", self.head_dim, "rotary positions need an even number")

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.heads * self.head_dim

    @property
    def tokens(self) -> int:
        """Tokens that one forward reads."""
        return self.batch * self.seq

    @property
    def key(self) -> str:
        """Twelve hex digits over every field but the label; stable across machines and releases."""
        fields = dataclasses.asdict(self)
        del fields["model"]
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def slug(self) -> str:
        """A readable name, safe as a folder name and at most 80 characters long."""
        heads = f"h{self.heads}" if self.kv_heads == self.heads else f"h{self.heads}kv{self.kv_heads}"
        label = re.sub(r"[^A-Za-z0-9_.]+", "-", self.model)[:24].strip("-.") or self.arch
        if self.arch not in label:
            label += f"-{self.arch}"
        label += "" if self.causal else "-full"
        shape = f"s{self.seq}-b{self.batch}-{heads}-l{self.layers}"
        return f"{label}-{self.backend}-{shape}-{_SHORT_DTYPE[self.dtype]}-{self.device}"[:_SLUG_MAX]

    @property
    def folder_name(self) -> str:
        """The slug and the key: unique for a case, whatever the overrides were."""
        return f"{self.slug}-{self.key}"


_COUNTS = {
    "seq": "tokens",
    "batch": "sequences",
    "heads": "heads",
    "kv_heads": "heads",
    "head_dim": "elements",
    "layers": "layers",
    "ffn_dim": "elements",
    "vocab": "entries",
}


def _whole(key: str, value: Any, *, least: int, unit: str) -> None:
    if type(value) is not int or not least <= value < 2**31:
        what = f"a whole number of {unit}" if unit else "a whole number"
        raise InvalidConfig(key, value, f"{what} from {least} to {2**31 - 1} is needed")


def _number(key: str, value: Any, allowed: str, least: float, below: float) -> None:
    if type(value) not in (int, float) or not least <= value < below:
        raise InvalidConfig(key, value, f"{allowed} is needed")


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidConfig(key, value, f"must be one of {', '.join(allowed)}")


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)

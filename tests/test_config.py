"""What a user can type, right and wrong: every file composes, every mistake is one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from attnscale import config
from attnscale.case import BACKENDS
from hydra_plugins.attnscale.sweeper import grid

ROOT = Path(__file__).parent.parent
config.register()


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", list(overrides))


def names(folder: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))


@pytest.mark.parametrize(
    "override",
    [
        f"{group}={name}"
        for group in ("backend", "model", "timing", "tracker")
        for name in names(f"conf/{group}")
    ],
)
def test_every_choice_of_every_group_is_a_case(override: str) -> None:
    group, _, name = override.partition("=")
    settings = config.to_config(composed(override))
    case = config.to_case(settings, device="cpu")
    if group in ("backend", "model"):
        assert getattr(case, group) == name


def test_there_is_a_file_for_every_backend() -> None:
    assert names("conf/backend") == sorted(BACKENDS)


@pytest.mark.parametrize("name", names("sweeps"))
def test_every_sweep_file_is_a_grid_of_cases(name: str) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        params = compose("config", [f"sweeps={name}"], return_hydra_config=True).hydra.sweeper.params
        overrides = OverridesParser.create().parse_overrides([f"{k}={v}" for k, v in params.items()])
        points = grid(overrides)
        cases = [
            config.to_case(config.to_config(compose("config", [f"sweeps={name}", *point])), device="cpu")
            for point in points
        ]
    assert len({case.key for case in cases}) == len(points) > 1


def test_wandb_sweep_file_drives_run_py() -> None:
    spec = yaml.safe_load((ROOT / "sweeps/wandb/grid.yaml").read_text())
    assert (ROOT / spec["program"]).is_file()
    assert spec["command"][-1] == "${args_no_hyphens}"
    fixed = [part for part in spec["command"] if "=" in part]
    for key, choice in spec["parameters"].items():
        for value in choice["values"]:
            config.to_case(config.to_config(composed(*fixed, f"{key}={value}")), device="cpu")


LLAMA3_70B = {
    "layers": 80,
    "d_model": 8192,
    "heads": 64,
    "kv_heads": 8,
    "ffn_dim": 28672,
    "vocab": 128256,
    "arch": "llama",
}


def test_llama3_70b_has_its_published_shape() -> None:
    case = config.to_case(config.to_config(composed("model=llama3_70b")), device="cpu")
    assert {name: getattr(case, name) for name in LLAMA3_70B} == LLAMA3_70B


def test_an_axis_wins_over_its_preset() -> None:
    case = config.to_case(config.to_config(composed("model=llama3_70b", "layers=8")), device="cpu")
    assert (case.layers, case.heads) == (8, 64)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seq=1k", "seq=1k: a whole number"),
        ("seq=01024", "seq=01024: a whole number"),
        ("seq=1e3", "seq=1000.0: a whole number"),
        ("seq=", "seq=: a whole number"),
        ("seq=-1", "seq=-1: a whole number of tokens from 1"),
        ("seq=0", "seq=0: a whole number of tokens from 1"),
        ("seq=[1024,2048]", "seq=[1024, 2048]: a whole number"),
        ("seq=0.5", "seq=0.5: a whole number"),
        ("guess.fastest=flesh", "guess.fastest=flesh: must be one of naive, "),
        ("guess.ratio=math", "guess.ratio=math: such as math/naive_inplace:3.7 is needed"),
        ("guess.ratio=math/flash:x", "guess.ratio=math/flash:x: such as"),
        ("guess.ratio=math/flash:0", "guess.ratio=math/flash:0: such as"),
        ("guess.kernels=math:2.5", "guess.kernels=math:2.5: such as math:20 is needed"),
        ("guess.kernels=math/flash:2", "guess.kernels=math/flash:2: such as"),
        ("trace=all", "trace=all: must be one of none, keep"),
        ("seq=true", "seq=True: a whole number"),
        ("seq='512'", "seq=512: a whole number"),
        ("seq=null", "seq=null: a whole number"),
        ("seq=range(0.1,0.4,0.1)", "seq=0.1: a whole number"),
        ("seq=64,1k", "seq=1k: a whole number"),
        ("seq=interval(1,2)", "seq=interval(1,2): list the values"),
        ("kv_heads=3", "kv_heads=3: must divide heads=8: 1, 2, 4, 8"),
        ("kv_heads=4", "kv_heads=4: arch=gpt has no grouped heads"),
        ("dtype=fp8", "dtype=fp8: must be one of float32, bfloat16, float16"),
        ("causal=maybe", "causal=maybe: true or false"),
        ("device=tpu", "device=tpu: must be one of auto, cuda, cpu"),
        ("backend=falsh", "backend=falsh: must be one of auto, cudnn"),
        ("model=/etc/passwd", "model=/etc/passwd: must be one of gpt"),
        ("sweeps=typo", "sweeps=typo: must be one of batch, depth"),
        ("timing.min_samples=0", "timing.min_samples=0: a whole number of samples from 1"),
        ("timing.max_seconds=0", "timing.max_seconds=0.0: a number of seconds above 0"),
        ("tracker.name=foo", "tracker.name=foo: must be one of wandb, none"),
        ("tracker.online_timeout_s=-5", "tracker.online_timeout_s=-5: a whole number of seconds"),
        ("tracker.project=a/b", "tracker.project=a/b: W&B takes"),
        ("tracker=none,wandb", "tracker=none,wandb: one value is needed"),
        ("output_dir=a,b", "output_dir=a,b: one value is needed"),
        ("sweeps=seq,batch", "sweeps=seq,batch: one value is needed"),
        ("tracker.mode=on", "tracker.mode=on: must be one of offline, online"),
        ("seq", "seq: key=value is needed"),
        ("seq=(", "seq=(: key=value is needed"),
        ("sqe=1024", "sqe=1024: there is no such key; did you mean seq? allowed: arch,"),
        ("+sqe=1024", "sqe=1024: there is no such key; did you mean seq?"),
        ("timing.foo=2", "timing.foo=2: there is no such key"),
        ("+timing.foo=2", "timing.foo=2: there is no such key"),
        ("~seq", "~seq=: a key can't be taken out"),
    ],
)
def test_a_bad_value_is_one_line_that_names_key_value_and_what_is_allowed(
    override: str, line: str
) -> None:
    def refuse() -> None:
        for parsed in OverridesParser.create().parse_overrides([override]):
            config.refuse(parsed)
        config.to_case(config.to_config(composed(override)), device="cpu")

    message = config.one_line(_raised_by(refuse))
    assert message.startswith(line)
    assert "\n" not in message


def _raised_by(action: Callable[[], None]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Hydra, OmegaConf and ours; the line is checked
        action()
    return caught.value


@pytest.mark.parametrize(
    ("overrides", "points"),
    [
        (
            ["seq=1,2", "backend=a,b"],
            [
                ["seq=1", "backend=a"],
                ["seq=1", "backend=b"],
                ["seq=2", "backend=a"],
                ["seq=2", "backend=b"],
            ],
        ),
        (["seq=1,2", "seq=3"], [["seq=3"]]),
        (["seq=1,2", "++seq=3"], [["++seq=3"]]),
        (["seq=range(1,3)"], [["seq=1"], ["seq=2"]]),
        ([], [[]]),
    ],
    ids=["left-is-outer", "last-mention-wins", "forced-override-wins-too", "range", "one-point"],
)
def test_grid(overrides: list[str], points: list[list[str]]) -> None:
    assert grid(OverridesParser.create().parse_overrides(overrides)) == points


def help_lines() -> dict[str, set[str]]:
    """First word of each line of the help's axes and groups -> the words that follow it."""
    text = (ROOT / "conf/hydra/help/attnscale.yaml").read_text()
    block = text[text.index("Axes (units)") :]
    lines = [line.replace("|", " ").replace(";", " ").split() for line in block.splitlines()]
    return {words[0]: set(words[1:]) for words in lines if words}


@pytest.mark.parametrize("group", ["backend", "model", "timing", "tracker", "sweeps"])
def test_help_names_every_choice_of_a_group(group: str) -> None:
    folder = group if group == "sweeps" else f"conf/{group}"
    assert set(names(folder)) <= help_lines()[group]


def test_help_names_every_key() -> None:
    axes = {key for key in config.known_keys() if "." not in key}
    assert axes <= set(help_lines())
    text = (ROOT / "conf/hydra/help/attnscale.yaml").read_text()
    dotted = {key for key in config.known_keys() if "." in key} - {"tracker.name"}
    assert all(key in text for key in dotted)

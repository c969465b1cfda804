"""Points are composed as Hydra composes them and fail as they fail there, with fewer compositions."""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from attnscale import config
from hydra_plugins.attnscale.points import compose
from hydra_plugins.attnscale.sweeper import grid

CONF = Path(__file__).parent.parent / "conf"
config.register()


@pytest.fixture(scope="module")
def loader() -> Iterator[ConfigLoader]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


@pytest.fixture(scope="module")
def master(loader: ConfigLoader) -> DictConfig:
    return loader.load_configuration("config", [], RunMode.MULTIRUN)


class Counted:
    """A loader that counts how often a point is composed from its files."""

    def __init__(self, loader: ConfigLoader) -> None:
        self.asked: list[list[str]] = []
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        self.asked.append(sweep_overrides)
        return self._loader.load_sweep_config(master_config, sweep_overrides)


def by_hydra(loader: ConfigLoader, told: DictConfig, point: Sequence[str]) -> DictConfig:
    """What Hydra makes of a point, without its own part."""
    composed = loader.load_sweep_config(told, list(point))
    with open_dict(composed):
        del composed["hydra"]
    return composed


@pytest.fixture(scope="module")
def expected(loader: ConfigLoader, master: DictConfig) -> Callable[[str], DictConfig]:
    """What Hydra makes of a point of POINTS, by its name; composed once, and not to be changed."""
    return functools.cache(lambda name: by_hydra(loader, master, POINTS[name]))


def same(ours: DictConfig, theirs: DictConfig) -> bool:
    """In values, order, types of values, and in what may be set."""
    values = [OmegaConf.to_container(one, resolve=True) for one in (ours, theirs)]
    shapes = [
        {
            key: (OmegaConf.get_type(node), OmegaConf.is_struct(node))
            for key in ("timing", "tracker")
            if OmegaConf.is_dict(node := one[key])
        }
        for one in (ours, theirs)
    ]
    yaml = [OmegaConf.to_yaml(one) for one in (ours, theirs)]
    types = [{key: type(value) for key, value in one.items()} for one in (ours, theirs)]
    structs = [(OmegaConf.is_struct(one), OmegaConf.get_type(one)) for one in (ours, theirs)]
    return all(left == right for left, right in (values, shapes, yaml, types, structs))


POINTS: dict[str, list[str]] = {
    "nothing": [],
    "values": ["seq=5", "batch=3", "dtype=float16", "causal=false", "seed=7"],
    "null": ["kv_heads=null", "ffn_dim=null", "output_dir=null"],
    "null-after-preset": ["model=llama3_8b", "kv_heads=null"],
    "groups": ["backend=auto", "timing=thorough", "tracker=none", "model=gpt2"],
    "group-and-values": ["backend=math", "seq=5"],
    "values-and-group": ["seq=5", "backend=math"],
    "preset-then-layers": ["model=llama3_70b", "layers=2", "ffn_dim=64"],
    "layers-then-preset": ["layers=2", "ffn_dim=64", "model=llama3_70b"],
    "timing-then-samples": ["timing=quick", "timing.min_samples=9"],
    "samples-then-timing": ["timing.min_samples=9", "timing=quick"],
    "whole-number-for-seconds": ["timing.max_seconds=3", "case_timeout_s=30"],
    "tracker-values": ["tracker.mode=online", "tracker.project='my project'", "tracker.entity=me"],
    "tracker-none-values": ["tracker=none", "tracker.mode=online"],
    "forced": ["++seq=5"],
    "forced-nested": ["++timing.min_samples=9", "timing=quick"],
    "forced-new-key": ["++extra=5", "seq=6"],
    "deleted": ["~sweeps", "seq=5"],
    "quoted": ["output_dir='a b,c=d'", 'resume="it\'s"'],
    "gpus": ["gpus='0,2'"],
    "one-gpu": ["gpus=0"],
    "text-with-dollar": ["output_dir='$HOME/x'"],
    "interpolation": ["batch=${seq}", "seq=6"],
    "twice": ["seq=5", "seq=6"],
    "enum": ["dtype=bfloat16", "arch=llama", "device=cpu", "retry=failed", "isolation=fresh"],
    "job-of-a-cluster": ["model=gpt", "heads=2", "kv_heads=2", "resume='/a/b-c'", "tracker=none"],
    "sweep-file": ["sweeps=seq"],
    "sweep-file-and-values": ["sweeps=smoke", "seq=5", "timing=quick", "layers=2"],
    "hydras-own": ["hydra.job.chdir=false", "seq=5"],
}


@pytest.mark.parametrize("name", list(POINTS))
def test_a_point_is_what_hydra_makes_of_it(
    loader: ConfigLoader, master: DictConfig, expected: Callable[[str], DictConfig], name: str
) -> None:
    (ours,) = compose(loader, master, [POINTS[name]])
    assert "hydra" not in ours
    assert same(ours, expected(name))


def test_points_do_not_leak_into_each_other(
    loader: ConfigLoader, master: DictConfig, expected: Callable[[str], DictConfig]
) -> None:
    """In one go, there and back: what they share stays as it was."""
    shared = ["nothing", "values", "null", "quoted", "gpus", "interpolation", "enum"]
    groups = ["timing-then-samples", "samples-then-timing", "preset-then-layers", "layers-then-preset"]
    names = [*shared, *groups, *reversed(shared), *reversed(groups)]
    ours = compose(loader, master, [POINTS[name] for name in names])
    assert [name for name, one in zip(names, ours, strict=True) if not same(one, expected(name))] == []


def test_a_point_may_be_changed_without_the_others(loader: ConfigLoader, master: DictConfig) -> None:
    first, second = compose(loader, master, [["seq=5"], ["seq=6"]])
    first.seq = first.timing.min_samples = 99
    assert (second.seq, second.timing.min_samples) == (6, 10)
    assert compose(loader, master, [["seq=7"]])[0].timing.min_samples == 10


def test_composing_leaves_the_master_as_it_was(loader: ConfigLoader, master: DictConfig) -> None:
    before = OmegaConf.to_yaml(master)
    compose(loader, master, [["seq=5", "backend=math"], ["timing=quick", "timing.min_samples=9"]])
    assert OmegaConf.to_yaml(master) == before


@pytest.mark.parametrize("name", ["smoke", "seed_table"])
def test_the_grid_of_a_sweep_file_is_what_hydra_makes_of_it(loader: ConfigLoader, name: str) -> None:
    of_the_file = loader.load_configuration("config", [f"sweeps={name}"], RunMode.MULTIRUN)
    texts = [f"{key}={value}" for key, value in of_the_file.hydra.sweeper.params.items()]
    points = grid(OverridesParser.create().parse_overrides(texts))
    ours = compose(loader, of_the_file, points)
    assert len(ours) == len(points) > 1
    assert same(ours[0], by_hydra(loader, of_the_file, points[0]))
    assert same(ours[-1], by_hydra(loader, of_the_file, points[-1]))


def test_what_the_command_line_told_hydra_holds_for_every_point(loader: ConfigLoader) -> None:
    told = loader.load_configuration("config", ["hydra.job.name=mine"], RunMode.MULTIRUN)
    points = [["seq=5"], ["backend=math"]]
    for ours, point in zip(compose(loader, told, points), points, strict=True):
        assert same(ours, by_hydra(loader, told, point))


MISTAKES: dict[str, list[str]] = {
    "text-for-a-number": ["seq=1k"],
    "text-for-a-number-among-others": ["batch=2", "seq=1k", "backend=math"],
    "fraction-for-a-whole-number": ["seq=0.5"],
    "list-for-a-number": ["seq=[1,2]"],
    "null-for-a-number": ["seq=null"],
    "nested": ["timing.min_samples=many"],
    "no-bool": ["causal=maybe"],
    "no-such-value": ["dtype=fp8"],
    "no-such-key": ["sqe=1024"],
    "no-such-nested-key": ["timing.foo=2"],
    "below-a-value": ["seq.x=2"],
    "no-such-choice": ["backend=falsh"],
    "no-such-preset": ["model=gpt3", "layers=2"],
    "no-such-sweep": ["sweeps=typo"],
    "choice-and-value-wrong": ["seq=1k", "backend=falsh"],
    "added-though-there": ["+seq=5"],
    "choice-of-no-group": ["seq@here=5"],
    "deleted-value": ["~timing.precision", "seq=5"],
    "deleted-though-absent": ["~nothing"],
    "grammar": ["seq=("],
    "no-value": ["seq"],
    "whole-group-as-a-value": ["timing=7"],
    "unknown-interpolation": ["++extra=${nothing:}"],
}


def raised_by(action: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Hydra's and OmegaConf's; both are compared
        action()
    return caught.value


def said(error: BaseException | None) -> list[tuple[type[BaseException], str]]:
    """Kind and text of an error and of each that it came from."""
    return [] if error is None else [(type(error), str(error)), *said(error.__cause__)]


@pytest.mark.parametrize("point", list(MISTAKES.values()), ids=list(MISTAKES))
def test_a_mistake_is_told_in_hydras_words(
    loader: ConfigLoader, master: DictConfig, point: list[str]
) -> None:
    def theirs() -> None:
        OmegaConf.to_container(by_hydra(loader, master, point), resolve=True)

    def ours() -> None:
        for composed in compose(loader, master, [point]):
            OmegaConf.to_container(composed, resolve=True)

    assert said(raised_by(ours)) == said(raised_by(theirs))


def test_a_grid_of_plain_values_is_composed_once(loader: ConfigLoader, master: DictConfig) -> None:
    points = [
        [f"seq={seq}", f"batch={batch}", "model=llama3_8b", f"timing.min_samples={6 + batch}"]
        for seq in range(1, 21)
        for batch in range(1, 11)
    ]
    counted = Counted(loader)
    composed = compose(counted, master, points)  # type: ignore[arg-type]
    assert counted.asked == [["model=llama3_8b"]]
    found = [(one.seq, one.batch, one.model, one.timing.min_samples) for one in composed]
    assert found == [(s, b, "llama3_8b", 6 + b) for s in range(1, 21) for b in range(1, 11)]


def test_every_set_of_choices_is_composed_once(loader: ConfigLoader, master: DictConfig) -> None:
    points = [
        [f"backend={backend}", f"seq={seq}", f"timing={timing}"]
        for seq in range(1, 26)
        for backend in ("flash", "math")
        for timing in ("quick", "default")
    ]
    counted = Counted(loader)
    composed = compose(counted, master, points)  # type: ignore[arg-type]
    assert len(composed) == 100
    assert len(counted.asked) == 4
    assert [one.backend for one in composed[:4]] == ["flash", "flash", "math", "math"]


def test_no_points_are_no_work(loader: ConfigLoader, master: DictConfig) -> None:
    counted = Counted(loader)
    assert compose(counted, master, []) == []  # type: ignore[arg-type]
    assert counted.asked == []

"""What NVML says of the card, and what is recorded where it says nothing."""

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnscale.measure import clocks
from attnscale.measure.clocks import Clocks, Reading

PARTS = {"sm_clock_mhz", "power_w", "temperature_c", "throttle"}


class Refused(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """A card that answers, as the library would; each answer may be replaced."""

    def refuse(*_: Any) -> None:
        raise Refused("Not Supported")

    fake = types.SimpleNamespace(
        NVMLError=Refused,
        NVML_SUCCESS=0,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        refuse=refuse,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetClockInfo=lambda *_: 1755,
        nvmlDeviceGetTemperature=lambda *_: 41,
        nvmlDeviceGetPowerUsage=lambda _: 650_000,
        nvmlDeviceGetFieldValues=lambda *_: [
            types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(uiVal=698_500))
        ],
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x4 | 0x20,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    properties = types.SimpleNamespace(uuid="1-2-3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    clocks._handle.cache_clear()
    yield fake
    clocks._handle.cache_clear()


def test_a_reading_is_clock_instant_power_temperature_and_throttle(nvml: Any) -> None:
    read = Clocks("cuda").read()
    assert read == Reading(
        sm_clock_mhz=1755,
        power_w=698.5,
        temperature_c=41,
        throttle=("sw_power_cap", "sw_thermal_slowdown"),
    )


def test_an_older_card_gives_its_mean_power(nvml: Any) -> None:
    nvml.nvmlDeviceGetFieldValues = lambda *_: [types.SimpleNamespace(nvmlReturn=3)]
    assert Clocks("cuda").read().power_w == 650.0


def test_what_a_card_keeps_to_itself_is_null_with_its_reason(nvml: Any) -> None:
    nvml.nvmlDeviceGetTemperature = nvml.refuse
    known = Clocks("cuda")
    assert known.read() == known.read()
    assert known.read().temperature_c is None
    assert known.read().sm_clock_mhz == 1755
    assert known.nulls == {"temperature_c": "NVML: Not Supported"}


def test_a_mig_slice_is_asked_by_its_own_name(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    nvml.nvmlDeviceGetHandleByUUID = asked.append
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-abc")
    Clocks("cuda").read()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1-2-3")
    clocks._handle.cache_clear()
    Clocks("cuda").read()
    assert asked == ["MIG-abc", "GPU-1-2-3"]


@pytest.mark.parametrize("missing", ["library", "driver"])
def test_without_nvml_every_part_is_null_with_the_reason(
    nvml: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "library":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        nvml.nvmlInit = nvml.refuse
    known = Clocks("cuda")
    assert known.read() == Reading()
    assert set(known.nulls) == PARTS
    assert all(why.startswith("NVML: ") for why in known.nulls.values())


def test_a_cpu_has_no_clocks() -> None:
    known = Clocks("cpu")
    assert known.read() == Reading()
    assert known.nulls == dict.fromkeys(PARTS, "device is cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_card_says_all_of_it() -> None:
    known = Clocks("cuda")
    read = known.read()
    assert known.nulls == {}
    assert None not in (read.sm_clock_mhz, read.power_w, read.temperature_c)

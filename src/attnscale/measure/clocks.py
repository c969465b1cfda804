"""What the card does while it is timed: SM clock, power, temperature, throttle reasons, from NVML.

A driver without NVML, a MIG slice or a card that keeps one of them to itself is no fault: that reading
is null, with the reason in ``nulls``.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Value = TypeVar("Value")

_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons, by NVML's own names (nvml.h)."""
_INSTANT_POWER = 186
"""NVML_FI_DEV_POWER_INSTANT of nvml.h: nvmlDeviceGetPowerUsage is a mean over a second on many cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The card at one moment; None is unknown."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] = ()


class Clocks:
    """Reads the card of this process. ``nulls`` has the reason for each part that can't be read."""

    def __init__(self, device: str) -> None:
        self.nulls: dict[str, str] = {}
        self._handle: Any = None
        if device != "cuda":
            self._unknown("device is cpu")
            return
        try:
            self._handle = _handle()
        except Exception as error:  # noqa: BLE001 - no library, no driver, no such device: all the same
            self._unknown(f"NVML: {error}")

    def read(self) -> Reading:
        """Some microseconds to a millisecond; never an error."""
        if self._handle is None:
            return Reading()
        import pynvml

        handle = self._handle
        return Reading(
            sm_clock_mhz=self._part(
                "sm_clock_mhz", lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            ),
            power_w=self._part("power_w", lambda: _power_w(handle)),
            temperature_c=self._part(
                "temperature_c",
                lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            ),
            throttle=self._part("throttle", lambda: _throttle(handle)) or (),
        )

    def _part(self, name: str, ask: Callable[[], Value]) -> Value | None:
        import pynvml

        if name in self.nulls:
            return None
        try:
            return ask()
        except pynvml.NVMLError as error:
            self.nulls[name] = f"NVML: {error}"
            return None

    def _unknown(self, why: str) -> None:
        self.nulls |= dict.fromkeys(("sm_clock_mhz", "power_w", "temperature_c", "throttle"), why)


@functools.cache
def _handle() -> Any:
    """Of the GPU or MIG slice that CUDA shows this process; NVML stays open as long as the process."""
    import pynvml

    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    uuid = visible if visible.startswith("MIG-") else f"GPU-{torch.cuda.get_device_properties().uuid}"
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _power_w(handle: Any) -> float:
    import pynvml

    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [_INSTANT_POWER])
    if field.nvmlReturn == pynvml.NVML_SUCCESS:
        return float(field.value.uiVal) / 1e3
    return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1e3


def _throttle(handle: Any) -> tuple[str, ...]:
    import pynvml

    bits = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    return tuple(name for bit, name in _REASONS.items() if bits & bit)

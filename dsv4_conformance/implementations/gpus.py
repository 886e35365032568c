"""Which GPUs this process may use, asked of the driver (NVML) without torch and without touching a device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

MIG = "MIG-"
"""How the UUID of an instance of a partitioned GPU begins."""


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs (or MIG instances) that CUDA programs see, in their order; [] without a GPU or a driver.

    Respects CUDA_VISIBLE_DEVICES as CUDA reads it: numbers or UUID prefixes, up to the first that names nothing.
    Numbers count in PCI order, which is CUDA's order too unless the machine mixes GPU models.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None and not wanted.strip():
        return []  # whatever the driver says; NVML's bindings take a while to import
    with _driver() as nvml:
        if nvml is None:
            return []
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        present = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        return present if wanted is None else _select(wanted, present, nvml)


def compute_capability(uuid: str) -> tuple[int, int]:
    """Compute capability (major, minor) of a GPU that ``visible_gpus`` listed. Raises RuntimeError if it is gone."""
    with _driver() as nvml:
        if nvml is None:
            raise RuntimeError(f"GPU {uuid} was visible, but the driver does not answer any more")
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if uuid.startswith(MIG):
            handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return int(major), int(minor)


def _select(wanted: str, present: Sequence[str], nvml: ModuleType) -> list[str]:
    chosen: list[str] = []
    for entry in (part.strip() for part in wanted.split(",")):
        uuid = _find(entry, present, nvml)
        if uuid is None or uuid in chosen:
            break
        chosen.append(uuid)
    return chosen


def _find(entry: str, present: Sequence[str], nvml: ModuleType) -> str | None:
    if entry.isdecimal():
        return present[int(entry)] if int(entry) < len(present) else None
    if entry.startswith(MIG):  # an instance is no device of its own in NVML's list
        try:
            nvml.nvmlDeviceGetHandleByUUID(entry)
        except nvml.NVMLError:
            return None
        return entry
    matches = [uuid for uuid in present if uuid.startswith(entry)] if entry.startswith("GPU-") else []
    return matches[0] if len(matches) == 1 else None


@contextmanager
def _driver() -> Iterator[ModuleType | None]:
    """NVML, initialised; None where there is no driver."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # no package, no library, no driver, no permission: all mean that no GPU can be used
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()

"""Leases of GPU slots: a worker owns one slot of a visible GPU until its process ends, however it ends.

A slot is a lock file; the kernel drops the lock with the process, so a crashed worker's successor gets the freed GPU.
Worker numbers would not do: after a crash xdist numbers on, and an outer CUDA_VISIBLE_DEVICES shifts what they mean.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from dsv4_conformance.errors import BadInput

WAIT_S = 300.0
POLL_S = 0.2
SILENCE_S = 5.0
"""A wait that is longer is told, so that the run does not look dead."""


@dataclass(frozen=True)
class Lease:
    """Slot ``slot`` of the GPU called ``gpu`` (a UUID or index, as CUDA_VISIBLE_DEVICES takes it)."""

    gpu: str
    slot: int
    lock: FileLock


def lease_folder() -> Path:
    """This user's folder of lock files, shared by all runs on the machine; DSV4_LEASE_DIR overrides it."""
    chosen = os.environ.get("DSV4_LEASE_DIR")
    if chosen:
        return Path(chosen)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "dsv4-conformance"
    return Path(tempfile.gettempdir()) / f"dsv4-conformance-{os.getuid()}"


def slots_per_gpu(workers: int, gpus: int, *, auto: bool) -> int:
    """Slots k of each GPU: 1 for ``-n auto``, else ceil(workers / GPUs)."""
    return 1 if auto or gpus == 0 else max(1, -(-workers // gpus))


def acquire(gpus: Sequence[str], slots: int, folder: Path | None = None, wait_s: float | None = None) -> Lease:
    """The first free slot, GPU by GPU and then slot by slot, so that workers spread over the GPUs.

    Waits at most ``wait_s`` seconds (default: DSV4_LEASE_WAIT_S or 300) for one. Raises BadInput when none came free,
    or when the lock files cannot be written.
    """
    folder = folder or lease_folder()
    wait_s = _wait_s() if wait_s is None else wait_s
    begun, told = time.monotonic(), False
    while True:
        for slot in range(slots):
            for gpu in gpus:
                lease = _try(folder, gpu, slot)
                if lease is not None:
                    return lease
        waited = time.monotonic() - begun
        if waited >= wait_s:
            raise BadInput(
                f"All {slots} slot(s) of each of {len(gpus)} visible GPU(s) stayed taken for {wait_s:.0f} s; wait for "
                f"the run that holds {folder}, or choose fewer workers (-n) or other GPUs (CUDA_VISIBLE_DEVICES)."
            )
        if waited >= SILENCE_S and not told:
            told = True
            _tell(
                f"All {slots} slot(s) of each of {len(gpus)} visible GPU(s) are taken by runs that share {folder}; "
                f"waiting for one, up to {wait_s:.0f} s."
            )
        time.sleep(POLL_S)


def _tell(sentence: str) -> None:
    """To the terminal, past what pytest captures: a worker has no other way to say anything yet."""
    with suppress(OSError, ValueError, AttributeError):  # there may be no stderr, or a closed one
        print(f"dsv4-conformance: {sentence}", file=sys.__stderr__, flush=True)


def _wait_s() -> float:
    text = os.environ.get("DSV4_LEASE_WAIT_S", "")
    try:
        return float(text) if text else WAIT_S
    except ValueError:
        raise BadInput(f"DSV4_LEASE_WAIT_S is {text!r}; give the seconds to wait for a GPU slot as a number.") from None


def _try(folder: Path, gpu: str, slot: int) -> Lease | None:
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in gpu)
    lock = FileLock(folder / f"gpu-{name}.slot{slot}.lock", thread_local=False)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except OSError as error:
        raise BadInput(
            f"GPU slots cannot be leased in {folder} ({error.strerror}); set DSV4_LEASE_DIR to a folder you can write."
        ) from None
    return Lease(gpu, slot, lock)

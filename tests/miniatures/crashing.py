"""Adapters that are right except in some cases, where they ruin the process, the device or the contract.

Which cases those are, and how each is to be judged, follows from the test's id alone, so that anyone can tell from a
journal whether every fault was charged to its own case: ``python -m tests.miniatures.crashing JOURNAL [JUNIT]``. Runs
need ``--timeout 20`` or so: some of the faults are hangs.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from dsv4_conformance.implementations import gpus
from tests.miniatures.base import Miniature
from tests.plugin import process_faults

EVERY = 4
"""One of so many attention cases is at fault."""
SURFACES = ("SparseDecode", "SparsePrefill")


@dataclass(frozen=True)
class Fault:
    """``act(call, result)`` runs after the right answer is there; ``statuses``: what the case may get for it."""

    act: Callable[[Any, Any], Any]
    statuses: tuple[str, ...]


def _process(name: str) -> Fault:
    found = process_faults.FAULTS[name]

    def act(call: Any, result: Any) -> Any:
        found.act()
        return result

    return Fault(act, (found.status,))


def _mutate_inputs(call: Any, result: Any) -> Any:
    call.q.mul_(0.5)
    return result


def _poison_output(call: Any, result: Any) -> Any:
    result.out[-1].fill_(torch.nan)
    return result


def _ask_for_too_much(call: Any, result: Any) -> Any:
    torch.empty(1 << 46, dtype=torch.uint8, device=call.q.device)
    return result


def _kernel_on_freed_memory() -> None:
    """Write to device memory that the driver has unmapped."""
    cuda = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 26)) == 0
    view = {"shape": (1 << 24,), "typestr": "<f4", "data": (address.value, False), "version": 3, "strides": None}
    tensor = torch.as_tensor(type("Freed", (), {"__cuda_array_interface__": view})(), device="cuda")
    assert cuda.cuMemFree_v2(address) == 0
    tensor.fill_(1.0)


def _illegal_access(call: Any, result: Any) -> Any:
    _kernel_on_freed_memory()
    return result


def _device_assert(call: Any, result: Any) -> Any:
    torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")] += 1
    return result


def _hang_the_device(call: Any, result: Any) -> Any:
    for _ in range(1000):
        torch.cuda._sleep(1 << 40)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return result


def _hang_the_device_with_the_gil(call: Any, result: Any) -> Any:
    for _ in range(1000):
        torch.cuda._sleep(1 << 40)  # type: ignore[no-untyped-call]
    ctypes.PyDLL("libcuda.so.1").cuCtxSynchronize()
    return result


class _Bomb:
    """Kills the context when the caller lets go of the result, after the call was found right."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def __del__(self) -> None:
        _kernel_on_freed_memory()


def _kill_context_later(call: Any, result: Any) -> Any:
    return _Bomb(result)


CPU = {
    **{name: _process(name) for name in process_faults.FAULTS if name != "stop"},
    "mutate_inputs": Fault(_mutate_inputs, ("FAIL",)),
    "poison_output": Fault(_poison_output, ("FAIL", "WARN")),
    "ask_for_too_much": Fault(_ask_for_too_much, ("OUT_OF_MEMORY",)),
}
GPU = {
    "illegal_access": Fault(_illegal_access, ("CRASH",)),
    "device_assert": Fault(_device_assert, ("CRASH",)),
    "hang_the_device": Fault(_hang_the_device, ("TIMEOUT",)),
    "hang_the_device_with_the_gil": Fault(_hang_the_device_with_the_gil, ("TIMEOUT",)),
    "kill_context_later": Fault(_kill_context_later, ("CRASH",)),
}


def fault_of(nodeid: str, faults: dict[str, Fault]) -> str | None:
    """Name of the fault of this case, None for a right one."""
    number = int.from_bytes(hashlib.sha256(nodeid.encode()).digest()[:6], "big")
    return sorted(faults)[number // EVERY % len(faults)] if number % EVERY == 0 else None


class EveryFault(Miniature):
    """One of the faults that this machine can show, case by case."""

    faults: ClassVar[dict[str, Fault]] = {**CPU, **GPU} if gpus.visible_gpus() else CPU

    def before(self, call: Any) -> Any:
        return replace(call)

    def after(self, call: Any, result: Any) -> Any:
        nodeid = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        name = fault_of(nodeid, self.faults)
        return result if name is None else self.faults[name].act(call, result)


class EveryGpuFault(EveryFault):
    """One of the faults of a GPU, case by case."""

    faults: ClassVar[dict[str, Fault]] = GPU
    devices = ("cuda",)


class Segfaults(EveryFault):
    """SIGSEGV."""

    faults: ClassVar[dict[str, Fault]] = {"segfault": CPU["segfault"]}


class Hangs(EveryFault):
    """A C call that holds the GIL and never returns."""

    faults: ClassVar[dict[str, Fault]] = {"hang_with_the_gil": CPU["hang_with_the_gil"]}


def wrongly_charged(journal: Path, junit: Path | None, faults: dict[str, Fault]) -> list[str]:
    """Sentences about cases that did not get what they should, or not once; [] if every fault is where it belongs."""
    from dsv4_conformance.plugin.journal import read_journal

    read = read_journal(journal)
    found = {result.nodeid: result for result in read.results}
    wrong = [f"{entry.nodeid}: no result" for entry in read.missing()]
    for entry in read.header.plan:
        if entry.nodeid not in found:
            continue
        name = fault_of(entry.nodeid, faults) if entry.surface in SURFACES else None
        right = faults[name].statuses if name else ("PASS", "WARN", "NOT_APPLICABLE")
        if found[entry.nodeid].status not in right:
            wrong.append(f"{entry.nodeid}: {name or 'right'} is {found[entry.nodeid].status}, not {' or '.join(right)}")
    lines = [line for line in journal.read_text().splitlines() if line.startswith('{"kind":"result"')]
    if len(lines) != len(read.header.plan):
        wrong.append(f"{len(lines)} results of {len(read.header.plan)} cases")
    if junit is not None:
        properties = [
            {str(p.get("name")): str(p.get("value")) for p in case.iter("property")}
            for case in ET.parse(junit).getroot().iter("testcase")
        ]
        told = sorted((p.get("dsv4_case_id", ""), p.get("dsv4_status", "")) for p in properties)
        if told != sorted((result.case_id, str(result.status)) for result in found.values()):
            wrong.append(f"{junit} tells something else, in {len(told)} entries")
    return wrong


if __name__ == "__main__":
    from dsv4_conformance.plugin.journal import read_journal

    given = [Path(word) for word in sys.argv[1:]]
    module, _, adapter = str(read_journal(given[0]).header.implementation.requested).partition(":")
    faults = getattr(importlib.import_module(module), adapter).faults
    sentences = wrongly_charged(given[0], given[1] if given[1:] else None, faults)
    print("\n".join(sentences) or "every fault is charged to its own case, once")
    sys.exit(bool(sentences))

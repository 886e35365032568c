"""One worker's implementation under test."""

import os

import torch

from dsv4_conformance.cases.generator import host_words, words
from dsv4_conformance.cases.plan import PlannedCase
from dsv4_conformance.errors import BadInput, HarnessError
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.runner.execute import raised
from dsv4_conformance.runner.memory import keep_freed
from dsv4_conformance.runner.subject import Subject


class Session:
    """Holds the adapter instance of a worker; hands out one Subject per planned case."""

    def __init__(self, implementation: type[Implementation], device: str) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda":
            _same_bits_on(self.device)
        else:
            keep_freed()
            if "OMP_NUM_THREADS" not in os.environ:
                # Cases are small: threads of one call cost more than they save, and workers would fight over cores.
                torch.set_num_threads(1)
        try:
            self.implementation = implementation(device)
        except (BadInput, KeyboardInterrupt):
            raise
        except BaseException as error:
            told = raised(f"Adapter {implementation.identity.name!r}", error)
            raise BadInput(f"{told.rstrip('.')}, when it was constructed; mend its __init__.") from error

    def subject(self, planned: PlannedCase) -> Subject:
        """A fresh subject for one test."""
        return Subject(self.implementation, self.device, planned.requirement)

    def probe(self) -> None:
        """On a GPU wait for all streams and use the device once; raises what CUDA says if that does not work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.zeros(1, device=self.device).add_(1).item()  # a launch picks up errors that nobody asked for

    def device_bytes(self) -> int:
        """Bytes that tensors of this process hold on its GPU, 0 on a CPU."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0


def _same_bits_on(device: torch.device) -> None:
    """Cases must have the same bits on every device: compare one stream with the host's. HarnessError otherwise."""
    stream = words(2026, "smoke", (70_001,), device).cpu().numpy().view("uint32")
    if not (stream == host_words(2026, "smoke", 70_001)).all():
        raise HarnessError(f"The generator gives other bits on {torch.cuda.get_device_name(device)} than on the host.")

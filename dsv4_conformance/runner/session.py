"""One worker's implementation under test."""

import torch

from dsv4_conformance.cases.plan import PlannedCase
from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.runner.subject import Subject


class Session:
    """Holds the adapter instance of a worker; hands out one Subject per planned case."""

    def __init__(self, implementation: type[Implementation], device: str) -> None:
        self.device = torch.device(device)
        try:
            self.implementation = implementation(device)
        except BadInput:
            raise
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0][:300]
            name = implementation.identity.name
            raise BadInput(f"Adapter {name!r} could not be constructed ({type(error).__name__}: {first}).") from error

    def subject(self, planned: PlannedCase) -> Subject:
        """A fresh subject for one test."""
        return Subject(self.implementation, self.device, planned.requirement)

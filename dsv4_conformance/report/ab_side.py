"""One side of an A/B comparison, in a process of its own: holds an adapter, runs and times cases as it is asked.

Started by report.ab_process. Requests are JSON lines on standard input, answers JSON lines on the descriptor that the
command line names, so that whatever an adapter prints disturbs nobody.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from typing import Any

import torch

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.codec import from_data
from dsv4_conformance.errors import BadInput, ConformanceFailure, NotApplicable
from dsv4_conformance.implementations.registry import check_device, load
from dsv4_conformance.plugin.jsonsafe import json_safe
from dsv4_conformance.runner.execute import convention_of, fit, implementation_method, run_guarded, surface_of
from dsv4_conformance.runner.session import Session
from dsv4_conformance.texts import summary_of

WARM_UP = 2
L2_BYTES = 256 << 20
"""Written before every timed call on a GPU, so that no call finds its inputs in the cache."""


class Side:
    """The adapter, and the call it was asked for last."""

    def __init__(self, name: str, device: str) -> None:
        """Raises BadInput for an adapter or a device that is not there."""
        cls = load(name)
        self.device = check_device(cls, device)
        cls.check_available()
        self.implementation = Session(cls, self.device).implementation
        self._call: tuple[str, Any] = ("", None)
        self._flush = torch.empty(L2_BYTES, dtype=torch.uint8, device=self.device) if self.device == "cuda" else None

    def hello(self) -> dict[str, Any]:
        """Who answers."""
        identity = self.implementation.identity
        packages = f"torch {torch.__version__}, Python {platform.python_version()}"
        return {
            "name": identity.name,
            "build": " ".join(filter(None, [identity.version, identity.commit[:10]])),
            "packages": packages,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "CPU",
            "kind": self.device,
            "surfaces": list(self.implementation.surfaces),
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What became of a request."""
        try:
            call = self._built(request["case"])
            if request["do"] == "time":
                return {"status": "ok", "seconds": self._times(call, int(request["repeats"]))}
            outputs = run_guarded(self.implementation, call)
            torch.save({name: tensor.cpu() for name, tensor in outputs.named().items()}, request["path"])
            return {"status": "ok"}
        except NotApplicable as error:
            return {"status": "NOT_APPLICABLE", "reason": str(error)}
        except ConformanceFailure as error:
            return {"status": "FAIL", "reason": str(error)}
        except (torch.OutOfMemoryError, MemoryError) as error:
            return {"status": "OUT_OF_MEMORY", "reason": summary_of(error)}

    def _built(self, case: str) -> Any:
        if self._call[0] != case:
            described = from_data(json.loads(case))
            assert isinstance(described, AttentionCase)
            self._call = (case, build(described, torch.device(self.device)))
        return self._call[1]

    def _times(self, call: Any, repeats: int) -> list[float]:
        surface = surface_of(call)
        method = getattr(self.implementation, implementation_method(surface))
        fitted = fit(call, convention_of(self.implementation, surface))
        return [self._time(method, fitted) for _ in range(WARM_UP + repeats)][WARM_UP:]

    def _time(self, method: Any, call: Any) -> float:
        if self._flush is None:
            began = time.perf_counter()
            method(call)
            return time.perf_counter() - began
        self._flush.zero_()
        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        method(call)
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000


def main() -> None:
    """Serve until standard input ends."""
    name, device, descriptor = sys.argv[1:]
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as replies:

        def reply(value: dict[str, Any]) -> None:
            replies.write(json.dumps(json_safe(value)) + "\n")
            replies.flush()

        try:
            side = Side(name, device)
        except BadInput as error:
            reply({"refused": str(error)})
            return
        except (Exception, SystemExit) as error:
            reply({"refused": f"Implementation {name!r} cannot be used: {summary_of(error)}."})
            return
        reply(side.hello())
        for line in sys.stdin:
            reply(side.answer(json.loads(line)))


if __name__ == "__main__":
    main()

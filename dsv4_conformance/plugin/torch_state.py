"""What of torch's state a whole process shares, and no case may leave changed: the next ones would fail for it."""

from __future__ import annotations

import sys
from typing import NamedTuple


class TorchState(NamedTuple):
    """torch's default dtype and default device."""

    dtype: object
    device: object


def torch_state() -> TorchState | None:
    """As they are now; None where torch has not been imported yet."""
    torch = sys.modules.get("torch")
    return None if torch is None else TorchState(torch.get_default_dtype(), torch.get_default_device())


def restored(before: TorchState | None) -> str:
    """Put back what is not as it was ``before``; the sentence about it, "" if nothing was changed."""
    torch, now = sys.modules.get("torch"), torch_state()
    if before is None or now is None or torch is None or now == before:
        return ""
    told = []
    if now.dtype != before.dtype:
        torch.set_default_dtype(before.dtype)
        told.append(f"default dtype at {now.dtype}")
    if now.device != before.device:
        # Without a device of its own torch makes tensors on the CPU, and no call pays for asking.
        torch.set_default_device(None if str(before.device) == "cpu" else before.device)
        told.append(f"default device at {now.device}")
    return f"The case left torch's {' and '.join(told)}; every later case would have been made with it."

"""What the attention kernels of each device take: head counts, list widths, rows, and whether they prefill sparsely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dsv4_conformance.errors import BadInput

MAX_PAGED_ROWS = 11673
"""Query rows of one paged call; the layer cuts longer batches on every device. FlashMLA's scheduler keeps
4 * (5 * rows + 1) bytes in shared memory, of which there are 228 KiB: https://github.com/sgl-project/sglang/pull/25502"""

TOPK_MULTIPLE = 128
"""Widths of sparse prefill's index lists: what the narrowest kernel asks for (spec §11)."""

SMALL = 64
"""Heads of the smaller kernel."""


@dataclass(frozen=True)
class Kernels:
    """One device's kernels. ``heads``: head counts they are built for, None = any. ``topk``: index_topk values that
    top-k kernels are built for, None = any multiple of 64. ``no_sparse``: why they have no sparse prefill, or ""."""

    family: str
    device: str
    heads: tuple[int, ...] | None = None
    topk: tuple[int, ...] | None = None
    no_sparse: str = ""

    def padded_heads(self, n_heads: int, local: int) -> int:
        """Heads of a call on a rank that owns ``local`` of ``n_heads``: spec §15's rule, raised to a count that exists.

        The layer pads in the same way (mla/backend.py). Raises BadInput if no kernel takes as many.
        """
        wanted = SMALL if local < n_heads and local <= SMALL else n_heads
        if self.heads is None:
            return wanted
        fitting = [count for count in self.heads if count >= wanted]
        if not fitting:
            raise BadInput(
                f"a rank owns {local} query heads, and {self.family} on {self.device} takes at most {max(self.heads)}; "
                "raise tp or lower dp."
            )
        return min(fitting)

    def decode_name(self, padded: int) -> str:
        """The kernel that decodes, in words."""
        return self.family if self.heads is None else f"{self.family} {self.device}, {padded} heads"

    def prefill_name(self, padded: int, sparse: bool) -> str:
        """The kernel that extends, in words."""
        name = self.decode_name(padded)
        if not sparse:
            return f"{name}, paged"
        small = ", the small top-k one up to 1280 keys" if self.device == "sm100" and padded == 128 else ""
        return f"{name}, sparse{small}"


_ELSEWHERE = "FlashMLA's sparse prefill is built for sm90 and sm100 only"

DEVICES: Mapping[str, Kernels] = MappingProxyType(
    {
        "sm90": Kernels("flash_mla", "sm90", (64, 128), (512, 1024)),
        "sm100": Kernels("flash_mla", "sm100", (64, 128), (512, 1024)),
        "sm120": Kernels("torch", "sm120", topk=(512, 1024), no_sparse=_ELSEWHERE),
        "hip": Kernels("torch", "hip", topk=(512, 1024), no_sparse=_ELSEWHERE),
        "cpu": Kernels("torch", "cpu"),
    }
)
"""Devices by name. On a CPU the torch kernels cover both paths, so sparse prefill stays on there."""


def kernels_of(device: str) -> Kernels:
    """The kernels of a device. Raises BadInput naming the known ones."""
    if device not in DEVICES:
        raise BadInput(f"device {device!r} is unknown; use one of {', '.join(DEVICES)}.")
    return DEVICES[device]

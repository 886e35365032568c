"""A golden's file: named tensors and a little text in the safetensors format, the same bytes wherever it is written.

The safetensors package reads these files. It does not write them, because the order of its header is not promised.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FORMATS = {"U8": "B", "BF16": "H", "I32": "i", "I64": "q", "F32": "f", "F64": "d"}
"""safetensors' name of a dtype -> struct's letter; a bf16 is read as its bit pattern."""


@dataclass(frozen=True)
class Stored:
    """A tensor as bytes: little-endian, row by row."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, dtype: str, shape: tuple[int, ...], values: Iterable[int] | Iterable[float]) -> "Stored":
        """Numbers in row-major order; raises struct.error if they do not fit."""
        count = 1
        for size in shape:
            count *= size
        return cls(dtype, shape, struct.pack(f"<{count}{_FORMATS[dtype]}", *values))

    def values(self) -> tuple[int, ...]:
        """The numbers in row-major order (float dtypes: floats; bf16: bit patterns)."""
        return struct.unpack(
            f"<{len(self.data) // struct.calcsize(_FORMATS[self.dtype])}{_FORMATS[self.dtype]}", self.data
        )

    def rows(self) -> list[tuple[int, ...]]:
        """The numbers, one tuple per row of the last dimension."""
        flat, width = self.values(), self.shape[-1]
        return [flat[start : start + width] for start in range(0, len(flat), width)]


Tensors = dict[str, Stored]


def file_bytes(tensors: Mapping[str, Stored], text: Mapping[str, str]) -> bytes:
    """The file: length of the header, header (JSON, sorted, padded to 8 bytes), then the tensors by element size and
    name, so that each lies at a multiple of its element size."""
    order = sorted(tensors, key=lambda name: (-struct.calcsize(_FORMATS[tensors[name].dtype]), name))
    header: dict[str, object] = {"__metadata__": dict(sorted(text.items()))}
    end = 0
    for name in order:
        start, end = end, end + len(tensors[name].data)
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([struct.pack("<Q", len(head)), head, *(tensors[name].data for name in order)])


def digest(tensors: Mapping[str, Stored]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(json.dumps([name, tensor.dtype, tensor.shape, len(tensor.data)]).encode())
        sha.update(tensor.data)
    return sha.hexdigest()

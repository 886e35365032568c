"""Reading a dump: the file, and every name, dtype and shape in it checked against the table of names."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.judge.names import ENTRIES, METADATA, Dim, Entry, Shape, dtype_text, shape_text


@dataclass(frozen=True)
class Contents:
    """Tensors and string metadata of a dump whose names, dtypes and shapes are those of its ``kind``."""

    kind: str
    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def option(self, name: str, default: str) -> str:
        """The value of a metadata key that has few values. Raises BadInput for any other value."""
        value, allowed = self.metadata.get(name, default), METADATA[name]
        if allowed is not None and value not in allowed:
            raise BadInput(f"metadata {name} is {value!r}; it may be {' or '.join(map(repr, allowed))}.")
        return value

    def count(self, name: str) -> int | None:
        """A positive whole number given as a scalar tensor or as metadata, or None. Raises BadInput for any other."""
        number = self.number(name)
        if number is None:
            return None
        if not (math.isfinite(number) and number.is_integer() and 1 <= number < 2**31):
            raise BadInput(f"{name} is {number:g}; it has to be a positive whole number.")
        return int(number)

    def number(self, name: str) -> float | None:
        """A number given as a scalar tensor or as metadata, or None. Raises BadInput if the two differ."""
        tensor, text = self.tensors.get(name), self.metadata.get(name)
        given = [] if tensor is None else [float(tensor.item())]
        if text is not None:
            try:
                given.append(float(text))
            except ValueError:
                raise BadInput(f"metadata {name} is {text!r}, which is not a number.") from None
        if len(given) == 2 and not math.isclose(*given, rel_tol=1e-6):
            raise BadInput(f"{name} is {given[0]:g} as a tensor and {text} in the metadata; keep one of them.")
        return given[-1] if given else None


def read(path: Path) -> Contents:
    """The contents of a dump file. Raises BadInput: unreadable, not safetensors, wrong names, dtypes or shapes."""
    tensors, metadata = _load(path)
    kind = _kind(tensors, metadata)
    entries = {entry.name: entry for entry in ENTRIES[kind]}
    for name in tensors:
        if name not in entries:
            raise BadInput(_unknown(name, entries, kind))
    missing = [entry.name for entry in entries.values() if entry.required and entry.name not in tensors]
    if missing:
        raise BadInput(f"the dump has no tensor {missing[0]}, which a {kind} dump needs (docs/judge.md has the names).")
    sizes: dict[str, tuple[int, str]] = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: list(entries).index(item[0])):
        _check(entries[name], tensor, sizes)
    return Contents(kind, tensors, metadata)


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if path == Path():  # what an empty word becomes
        raise BadInput("the name of the dump is empty or that of this folder; name a .safetensors file.")
    if not path.is_file():
        raise BadInput(f"{path} is {'a folder' if path.is_dir() else 'not there'}; name a .safetensors file.")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise BadInput(
            f"{path} is not a whole safetensors file ({reason}); write it with safetensors.torch.save_file."
        ) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror or error}); check its permissions.") from None


def _kind(tensors: Iterable[str], metadata: dict[str, str]) -> str:
    if "kind" in metadata:
        return Contents("", {}, metadata).option("kind", "")
    names = set(tensors)
    if any(name.startswith(("window_", "extra_")) for name in names):
        return "decode"
    if names & {"kv", "indices", "max_logits"}:
        return "prefill"
    raise BadInput(
        "the dump has neither window_indices (a decode call) nor indices (a prefill call); docs/judge.md has the names."
    )


def _unknown(name: str, entries: dict[str, Entry], kind: str) -> str:
    near = difflib.get_close_matches(name, entries, n=1)
    meant = f"did you mean {near[0]}?" if near else "docs/judge.md has the names."
    return f"a {kind} dump has no tensor called {name!r}; {meant}"


def _check(entry: Entry, tensor: Tensor, sizes: dict[str, tuple[int, str]]) -> None:
    """Check dtype and shape, and record what the shape's words stand for."""
    wanted = f"{' or '.join(map(dtype_text, entry.dtypes))} {' or '.join(map(shape_text, entry.shapes))}"
    given = f"{entry.name} is {dtype_text(tensor.dtype)} {tuple(tensor.shape)}"
    shape = next((shape for shape in entry.shapes if _fits(shape, tensor)), None)
    if tensor.dtype not in entry.dtypes or shape is None:
        raise BadInput(f"{given}; it has to be {wanted}.")
    for word, size in zip(shape, tensor.shape, strict=True):
        known, where = sizes.setdefault(str(word), (size, entry.name)) if isinstance(word, str) else (size, "")
        if known != size:
            raise BadInput(
                f"{given}, so {word} would be {size}, but {where} has {word} {known}; dump them from one call."
            )
    if 0 in tensor.shape and not _may_be_empty(shape):
        raise BadInput(f"{given}, which holds nothing.")


def _fits(shape: Shape, tensor: Tensor) -> bool:
    def same(word: Dim, size: int) -> bool:
        return isinstance(word, str) or word == size

    return len(shape) == tensor.dim() and all(map(same, shape, tensor.shape))


def _may_be_empty(shape: Shape) -> bool:
    """Pages and rows of a cache: a call may name no key at all."""
    return str(shape[0]).endswith((" num_pages", " n")) if shape else False

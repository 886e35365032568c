"""What wrong adapters are made of: the built-in adapter with hooks, and declarations that can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from dsv4_conformance.faults.calls import Call as Call
from dsv4_conformance.faults.calls import Called
from dsv4_conformance.faults.calls import keys_of as keys_of
from dsv4_conformance.faults.calls import lists_of as lists_of
from dsv4_conformance.faults.calls import tables_of as tables_of
from dsv4_conformance.faults.calls import with_bytes as with_bytes
from dsv4_conformance.faults.calls import with_lists as with_lists
from dsv4_conformance.implementations.api import AttentionConvention, Convention, Identity
from dsv4_conformance.implementations.builtin import Builtin


class Miniature(Called):
    """The built-in adapter, right; subclasses change the call before it runs or the result after it."""

    identity: ClassVar[Identity] = Identity("Miniature", "1", "https://example.org/miniatures", kind="engine")

    def __init_subclass__(cls) -> None:
        cls.identity = replace(cls.identity, name=cls.__name__)


def declaring(**changes: Any) -> Mapping[str, Convention]:
    """The built-in declarations with changes to both attention surfaces."""
    changed = replace(AttentionConvention(topk_multiple=1, accepts_out=True), **changes)
    return {**Builtin.surfaces, "SparseDecode": changed, "SparsePrefill": changed}

"""Declarations that cannot be true are refused before anything runs."""

from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import (
    SURFACE_METHODS,
    AttentionConvention,
    FormatConvention,
    Identity,
    Implementation,
    PlainConvention,
)
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.implementations.extent_api import FormulaConvention, PrefixConvention
from dsv4_conformance.implementations.state_api import ChunkCacheConvention, LayerConvention, StateConvention

IDENTITY = Identity("mine", "1", "https://example.org")


def adapter(*methods: str, **declared: Any) -> type[Implementation]:
    """An adapter class that defines ``methods`` and declares as given."""
    members = {method: lambda self, *args: None for method in methods}
    return type("MyKernel", (Implementation,), {"identity": IDENTITY} | declared | members)


def test_every_surface_can_be_declared_with_its_own_convention() -> None:
    surfaces = {
        "SparseDecode": AttentionConvention(h_q=(64, 128), page_sizes=(2, 64, 256)),
        "SparsePrefill": AttentionConvention(lse_base="2", lonely_lse="-inf"),
        "DecodePlan": PlainConvention(),
        "KVPageFormat": FormatConvention(ue8m0_floor="scale_1e-4"),
        "IndexKeyFormat": FormatConvention(),
        "SlotMapping": PlainConvention(),
        "HeadLayout": PlainConvention(),
        "Compressor": StateConvention(precision="bfloat16"),
        "Indexer": StateConvention(),
        "SparsePrefillWorkspace": PlainConvention(),
        "SparsePrefillChunkCache": ChunkCacheConvention(gather="rectangular"),
        "GraphMetadata": PlainConvention(),
        "AttentionLayer": LayerConvention(ratios=(0, 4)),
        "EngineConfig": PlainConvention(),
        "Formula": FormulaConvention(formulas=("kv_data_byte",)),
        "Planner": PlainConvention(),
        "PrefixReuse": PrefixConvention(granularity=64),
    }
    assert set(surfaces) == set(SURFACE_METHODS)
    methods = [method for group in SURFACE_METHODS.values() for method in group]
    cls = adapter(*methods, surfaces=surfaces, compute_capabilities=((9, 0),), devices=("cuda",))
    assert check_declarations("mine", cls) is cls


def test_a_method_may_be_inherited_from_another_adapter() -> None:
    base = adapter("decode", surfaces={"SparseDecode": AttentionConvention()})
    derived = type("Derived", (base,), {})
    assert check_declarations("mine", derived) is derived


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"identity": None}, "has no identity"),
        ({"identity": ("mine", "1")}, "has no identity"),
        ({"identity": Identity("mine", "", "https://example.org")}, "identity without version"),
        ({"identity": Identity("mine", "1", "x", kind="library")}, "kind 'library'; use 'kernel' or 'engine'"),  # type: ignore[arg-type]
        ({"devices": ("gpu",)}, "devices ('gpu',)"),
        ({"devices": "cuda"}, "devices 'cuda'; use a tuple"),
        ({"devices": ()}, "devices ()"),
        ({"compute_capabilities": ("9.0",)}, "compute_capabilities ('9.0',)"),
        ({"compute_capabilities": (9, 0)}, "compute_capabilities (9, 0)"),
        ({"surfaces": ["SparseDecode"]}, "surfaces as a list"),
        ({"surfaces": {"SparseDecod": AttentionConvention()}}, "'SparseDecod'; did you mean 'SparseDecode'?"),
        ({"surfaces": {"Layer": PlainConvention()}}, "unknown surface 'Layer'"),
        (
            {"surfaces": {"SparsePrefill": AttentionConvention()}},
            "declares SparsePrefill and does not define prefill()",
        ),
        ({"surfaces": {"KVPageFormat": FormatConvention()}, "pack": print}, "does not define unpack()"),
        ({"surfaces": {"SparseDecode": AttentionConvention()}, "decode": None}, "does not define decode()"),
        (
            {"surfaces": {"SparseDecode": FormatConvention()}},
            "SparseDecode with FormatConvention; it takes an instance of Att",
        ),
        (
            {"surfaces": {"SparseDecode": AttentionConvention}},
            "SparseDecode with AttentionConvention; it takes an instance",
        ),
        ({"surfaces": {"SlotMapping": FormatConvention()}}, "takes an instance of PlainConvention"),
        ({"surfaces": {"SparseDecode": AttentionConvention(lse_base="10")}}, "lse_base '10'; use 'e' or '2'"),  # type: ignore[arg-type]
        ({"surfaces": {"SparseDecode": AttentionConvention(h_q=(64, 256))}}, "h_q (64, 256); use None or a tuple"),
        ({"surfaces": {"SparseDecode": AttentionConvention(h_q=())}}, "h_q ()"),
        ({"surfaces": {"SparseDecode": AttentionConvention(h_q=64)}}, "h_q 64"),  # type: ignore[arg-type]
        ({"surfaces": {"SparseDecode": AttentionConvention(page_sizes=(0,))}}, "page_sizes (0,)"),
        (
            {"surfaces": {"SparseDecode": AttentionConvention(topk_multiple=0)}},
            "topk_multiple 0; use a number above zero",
        ),
    ],
)
def test_what_cannot_be_true_is_refused(declared: dict[str, Any], says: str) -> None:
    defined = [method for method in ("decode", "compressed_slots") if method not in declared]
    with pytest.raises(BadInput) as caught:
        check_declarations("the_name", adapter(*defined, **declared))
    said = str(caught.value)
    assert says in said
    assert said.startswith("implementation 'the_name'")
    assert "\n" not in said


def test_a_class_that_forgets_its_identity_is_refused() -> None:
    with pytest.raises(BadInput, match="has no identity"):
        check_declarations("forgetful", type("Forgetful", (Implementation,), {}))

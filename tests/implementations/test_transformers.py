"""The transformers adapter where the engine is absent: what it declares, and the sentences it refuses with.

tests/engines/ has the tests that need the engine.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import transformers, transformers_engine
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.implementations.transformers_engine import TableRope, load_engine, widened

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("Transformers", "Float64", "LeftPadded", "RightPadded", "Packed")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_has_a_name_of_its_own_and_declarations_that_hold(name: str) -> None:
    found = load(f"dsv4_conformance.implementations.transformers:{name}")
    assert check_declarations(name, found) is found
    assert found.identity.kind == "engine" and any("stood in" in note for note in found.identity.notes)


def test_names_of_the_variants_differ() -> None:
    assert len({getattr(transformers, name).identity.name for name in VARIANTS}) == len(VARIANTS)
    assert load("transformers") is transformers.Transformers


# Kills: a variant that passes by doing nothing, because it declares less than it can do.
def test_padded_and_packed_batches_differ_from_the_plain_one_in_what_their_form_cannot_do() -> None:
    layers: dict[str, Any] = {name: getattr(transformers, name).surfaces["AttentionLayer"] for name in VARIANTS}
    assert {name for name, layer in layers.items() if layer.lockstep} == {"LeftPadded"}
    assert {name for name, layer in layers.items() if layer.padded_rows} == {"RightPadded", "Packed"}
    assert {name for name, layer in layers.items() if layer.lookback} == {"RightPadded", "Packed"}
    assert {layer.ratios for layer in layers.values()} == {(0, 4, 128)}


# Kills: a missing, old or broken installation that ends in a traceback, or is taken.
@pytest.mark.parametrize(
    ("version", "missing", "says"),
    [
        ("not installed", "", "is not installed; install it with `pip install 'dsv4-conformance[transformers]'`."),
        ("5.24.0", "transformers", "is not installed"),
        ("5.16.1", "", "needs transformers 5.17 or newer, not 5.16.1"),
        ("4.57.6", "", "needs transformers 5.17 or newer"),
        ("5.17.0", "transformers.models.deepseek_v4", "finds no DeepSeek-V4 model in transformers 5.17.0; reinstall"),
        ("5.17.0", "", None),
        ("6.0.0", "", None),
    ],
)
def test_what_is_missing_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, version: str, missing: str, says: str | None
) -> None:
    monkeypatch.setattr(transformers, "_version", lambda: version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else name)
    if says is None:
        transformers.Transformers.check_available()
        return
    with pytest.raises(BadInput, match="implementation 'transformers'") as caught:
        transformers.Transformers.check_available()
    assert says in str(caught.value) and "\n" not in str(caught.value)


# Kills: an engine that has moved what is driven, found out in the middle of a run.
@pytest.mark.parametrize(
    "lost", ["eager_attention_forward", "DeepseekV4Config", "DeepseekV4CSACompressor", "eager_mask"]
)
def test_a_release_that_lacks_what_is_driven_is_refused(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    registered: list[str] = []
    functions = SimpleNamespace(register=lambda name, function: registered.append(name))
    names = ["eager_attention_forward", "DeepseekV4Config", "eager_mask", "DynamicCache"]
    names += [f"DeepseekV4{part}" for part in ("Attention", "Indexer", "HCACompressor", "CSACompressor")]
    known = {name: object() for name in names} | {"ALL_ATTENTION_FUNCTIONS": functions}
    known |= {"ALL_MASK_ATTENTION_FUNCTIONS": functions}
    monkeypatch.setattr(transformers_engine, "import_module", lambda name: SimpleNamespace(**known))
    load_engine()
    assert registered == [transformers_engine.WATCHED] * 2
    del known[lost]
    with pytest.raises(
        BadInput, match=f"does not fit the installed transformers .*{lost}.*; install a release"
    ) as said:
        load_engine()
    assert str(said.value).endswith("`pip install 'dsv4-conformance[transformers]'`.")


# Kills: cos and sin that change places, halves instead of pairs, the other layer type's table, a lost dtype.
def test_the_stand_in_for_the_rotary_embedding_reads_pairs_of_the_asked_table() -> None:
    main, compress = torch.arange(12.0).view(3, 4), 100 + torch.arange(12.0).view(3, 4)
    rope = TableRope({"main": main, "compress": compress})
    cos, sin = rope(torch.zeros(1, dtype=torch.float64), torch.tensor([[0, 2, 7]]), "compress")
    assert cos.tolist() == [[[100, 102], [108, 110], [108, 110]]] and sin.tolist() == [
        [[101, 103], [109, 111], [109, 111]]
    ]
    assert cos.dtype == torch.float64
    assert rope(main, torch.tensor([[1]]), "main")[0].tolist() == [[[4, 6]]]


def test_short_rows_of_picks_end_with_none() -> None:
    picks = widened(torch.tensor([[2, -1]]), 4)
    assert picks.tolist() == [[2, -1, -1, -1]] and picks.dtype == torch.int32


def test_reading_the_declarations_imports_neither_torch_nor_the_engine() -> None:
    program = (
        "import sys; from dsv4_conformance.implementations.registry import load; load('transformers'); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0

"""The grow-only buffer of sparse prefill and the conditions of sharing it (spec §13.1)."""

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace


# Kills: a buffer per call, rounded or doubled sizes, old content copied into a larger buffer's storage.
def test_it_grows_to_exactly_what_is_asked_and_never_shrinks() -> None:
    workspace = SparsePrefillWorkspace("cpu")
    assert workspace.rows == 0
    three = workspace.get(3)
    assert (three.shape, three.dtype) == ((3, 1, 512), torch.bfloat16)
    assert three.untyped_storage().nbytes() == 3 * 512 * 2
    two = workspace.get(2)
    assert (two.shape, two.data_ptr()) == ((2, 1, 512), three.data_ptr())
    seven = workspace.get(7)
    assert seven.data_ptr() != three.data_ptr()
    assert (seven.shape, workspace.rows) == ((7, 1, 512), 7)
    assert seven.untyped_storage().nbytes() == 7 * 512 * 2
    assert workspace.get(3).data_ptr() == workspace.get(7).data_ptr() == seven.data_ptr()


# Kills: a buffer that is cleared when it is handed out, old rows that growth overwrites.
def test_content_is_whatever_stood_there() -> None:
    workspace = SparsePrefillWorkspace("cpu")
    old = workspace.get(4).fill_(3)
    assert (workspace.get(2) == 3).all()
    workspace.get(9).fill_(5)
    assert (old == 3).all()


def test_a_layer_in_float32_has_float32_rows() -> None:
    assert SparsePrefillWorkspace("cpu", torch.float32).get(1).dtype == torch.float32


@pytest.mark.parametrize("rows", [0, -1])
def test_no_rows_are_refused(rows: int) -> None:
    with pytest.raises(BadInput, match=f"{rows} rows"):
        SparsePrefillWorkspace("cpu").get(rows)


# Kills: two layers that gather into one buffer at once, a use that stays open after an error.
def test_uses_do_not_overlap() -> None:
    workspace = SparsePrefillWorkspace("cpu")
    with workspace.use(2) as view:
        assert view.data_ptr() == workspace.get(1).data_ptr()
        with pytest.raises(RuntimeError, match="one after the other"), workspace.use(1):
            pass
    with pytest.raises(ZeroDivisionError), workspace.use(1):
        raise ZeroDivisionError
    with pytest.raises(BadInput), workspace.use(0):
        pass
    with workspace.use(5) as view:
        assert view.shape == (5, 1, 512)


# Kills: a captured graph that holds the address of a buffer that a later batch replaces.
def test_no_use_during_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = SparsePrefillWorkspace("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="graph capture"), workspace.use(1):
        pass

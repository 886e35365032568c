"""The chunk planner of a bounded workspace, alone and inside a layer."""

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.planner import Piece, Planner
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace


# Kills: rows counted in tokens, or for the wrong layer; chunks that stop early.
def test_chunks_are_as_large_as_fits() -> None:
    planner = Planner(400, [0, 4, 128])
    # 100 tokens at once: 25 entries and 100 window rows; 250: 62 + 250; 320: 80 + 320 = 400.
    assert planner.rows([Piece(0, 0, 100)]) == 125
    assert planner.plan([320], [320]) == [[Piece(0, 0, 320)]]
    chunks = planner.plan([321], [321])
    assert [sum(piece.count for piece in chunk) for chunk in chunks] == [320, 1]
    assert planner.plan([4, 7], [4, 2]) == [[Piece(0, 0, 4), Piece(1, 5, 2)]]


# Kills: one new token behind a long prefix taken for one row. https://github.com/vllm-project/vllm/pull/51252
def test_long_prefixes_fill_a_chunk() -> None:
    planner = Planner(3000, [4])
    chunks = planner.plan([4096] * 5, [1] * 5)
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert planner.rows(chunks[0]) == 2 * (1024 + 128)


def test_a_token_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(BadInput, match="position 255 of request 1 alone gathers 192 rows and the workspace has 191"):
        Planner(191, [4]).plan([3, 256], [3, 1])
    with pytest.raises(BadInput, match="holds nothing"):
        Planner(0, [4])


# Kills: a reserved buffer that grows, or that is not there at once.
def test_a_reserved_workspace_does_not_grow() -> None:
    workspace = SparsePrefillWorkspace("cpu")
    workspace.reserve(7)
    address = workspace.get(3).data_ptr()
    assert workspace.rows == 7 and workspace.get(7).data_ptr() == address
    with pytest.raises(BadInput, match="8 rows were asked of a workspace of 7"):
        workspace.get(8)
    assert workspace.get(1).dtype == torch.bfloat16

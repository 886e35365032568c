"""The engine's attention metadata of a step, built by its own backend, and its copy and refresh (spec §14).

The backend is an instance without a model: ``make_core_attn_metadata`` and ``init_forward_metadata_indexer`` run as
they are, with their Triton kernels. Stood in for: the pools (tables whose window slots equal the full pool's), the
scheduler objects of FlashMLA, the compressor's plans (C++, CUDA only). What each event does to a field is read from the
lists of field names that the engine's own methods hold.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor

from dsv4_conformance.implementations import sglang_engine as engine
from dsv4_conformance.implementations import sglang_release as release
from dsv4_conformance.implementations.state_api import Change, StepBatch

PAGE = 256
WINDOW = 128
METADATA = "sglang.srt.layers.attention.dsv4.metadata"
INDEX_TOPK = (512, 1024)
"""Values that the engine asserts."""
REFRESH = "refresh_for_breakable_cuda_graph_replay_"


class MetadataSession:
    """The engine's ``DSV4Metadata`` of one batch."""

    def __init__(self, batch: StepBatch, device: str) -> None:
        module = engine.module(release.BACKEND)
        table, lens, loc = _tables(batch, device)
        backend = _backend(module, batch, table, device)
        rows = torch.tensor(
            [row + 1 if n else 0 for row, n in enumerate(batch.seq_lens)], dtype=torch.int32, device=device
        )
        with mock.patch.object(module, "_create_flashmla_metadata", object):
            core = backend.make_core_attn_metadata(
                req_to_token=table,
                req_pool_indices_repeated=rows,
                seq_lens_casual=lens,
                max_seq_len=table.shape[1],
                out_loc=loc,
                need_compress=True,
                is_prefill=True,
            )
            self.metadata = module.DSV4Metadata(core, backend.init_forward_metadata_indexer(core))
        self._names = tuple(name for name, value in self._all().items() if value is not None)

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self.metadata, name) for name in ("core_attn_metadata", "indexer_metadata")}

    def _all(self) -> dict[str, Any]:
        return {
            f"{part}.{field.name}": getattr(held, field.name, None)
            for part, held in self._parts().items()
            for field in fields(held)
        }

    def fields(self) -> Mapping[str, Any]:
        """Fields of both parts by name; left out are those that hold nothing in such a step."""
        return {name: value for name, value in self._all().items() if name in self._names}

    def classes(self, event: Literal["copy", "refresh"]) -> Mapping[str, Change]:
        """As the engine's own lists of names say."""
        found: dict[str, Change] = dict.fromkeys(self._names, "kept")
        for part, held in self._parts().items():
            refreshed = event == "refresh" and part == "core_attn_metadata"
            copied, referenced = _listed_by_refresh(held) if refreshed else _listed_by_copy(held)
            found |= {f"{part}.{name}": "copied" for name in copied if f"{part}.{name}" in found}
            found |= {f"{part}.{name}": "referenced" for name in referenced if f"{part}.{name}" in found}
        return found

    def copy_(self, other: Any) -> None:
        """Spec §14.3."""
        self.metadata.copy_(other.metadata)

    def refresh_(self, static: Any) -> None:
        """Spec §14.4."""
        getattr(self.metadata, REFRESH)(static.metadata)

    def chunk_cache(self) -> Any | None:
        """Spec §14.3."""
        return self.metadata.sparse_prefill_cache

    def attach_chunk_cache(self, cache: Any) -> None:
        """Spec §14.3."""
        self.metadata.sparse_prefill_cache = cache

    def lists(self, ratio: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Spec §14.2."""
        core = self.metadata.core_attn_metadata
        window = (core.swa_page_indices, core.swa_topk_lengths)
        if ratio == 128:
            return *window, core.c128_page_indices, core.c128_topk_lengths_clamp1
        return *window, None, core.c4_sparse_topk_lengths if ratio == 4 else None


def _tables(batch: StepBatch, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """The engine's request table int32 ``(rows + 1, tokens)``, its lengths and its write slots, int32 ``(rows,)``.

    Table row 0 and page 0 belong to nobody: the runner lets padding rows read and write there, as sequences of
    ``get_cuda_graph_seq_len_fill_value()`` tokens, which is 1 in every release.
    """
    pages = torch.nn.functional.pad(batch.page_table.to(torch.int32), (0, 0, 1, 0))
    token = torch.arange(pages.shape[1] * PAGE, device=device, dtype=torch.int32)
    table = (pages[:, token // PAGE] * PAGE + token % PAGE).to(torch.int32)
    table[0] = 0
    lens = torch.tensor([n or 1 for n in batch.seq_lens], dtype=torch.int32, device=device)
    owned = torch.tensor([n > 0 for n in batch.seq_lens], device=device)
    last = table[1:].gather(1, (lens.long() - 1)[:, None])[:, 0]
    return table, lens, torch.where(owned, last, 0).to(torch.int32)


def _backend(module: Any, batch: StepBatch, table: Tensor, device: str) -> Any:
    """A ``DeepseekV4AttnBackend`` with what its metadata builders read, under the names of all releases."""
    backend = object.__new__(engine.attribute(release.BACKEND, "DeepseekV4AttnBackend"))
    slots = int(table.max()) + PAGE
    same = torch.cat((torch.arange(slots, device=device), torch.tensor([-1], device=device)))
    pool = SimpleNamespace(
        full_to_swa_index_mapping=same,
        translate_loc_from_full_to_swa=lambda loc: same[loc],
        request_window=None,
        swa_page_size=WINDOW,
        get_index_k_page_size=lambda *_given: PAGE // 4,
    )
    backend.__dict__.update(
        req_to_token=table,
        token_to_kv_pool=pool,
        page_size=PAGE,
        swa_page_size=WINDOW,
        c4_topk=batch.index_topk,
        index_topk=batch.index_topk,
        present_ratios=(4, 128),
        low_ratios=(),
        cuda_int32_kwargs={"device": torch.device(device), "dtype": torch.int32},
        trtllm_attn=False,
        enable_deepseek_v4_fp4_indexer=False,
        dsa_topk_backend=SimpleNamespace(should_use_topk_v2=lambda: False),
        encoder_replay=None,
        encoder_row_floor=None,
        is_dspark_draft=False,
    )
    return backend


def _listed_by_copy(held: Any) -> tuple[list[str], list[str]]:
    """Names that ``copy_`` copies and assigns: what it tells ``copy_metadata``, which is not run."""
    told: dict[str, Any] = {}

    def note(**given: Any) -> None:
        told.update(given)

    module = inspect.getmodule(type(held).copy_)
    with mock.patch.object(module, "copy_metadata", note):
        held.copy_(held)
    return list(told["copy_fields"]), list(told.get("assign_fields") or ())


def _listed_by_refresh(held: Any) -> tuple[list[str], list[str]]:
    """Names in the two lists of the refresh method, which are its local variables."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(type(held), REFRESH))))
    lists: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List):
            lists[node.targets[0].id] = [ast.literal_eval(element) for element in node.value.elts]
    try:
        return lists["tensor_copy_fields"], lists["reference_assign_fields"]
    except KeyError as missing:
        raise engine.misfit(f"{REFRESH} has no list {missing}") from None

"""Head padding and sinks through the engine's own ``MQALayer.forward`` (spec §15).

The layer is an instance without weights. Its forward runs up to the attention backend: what it hands over there, query
and sink, is what the surface answers with. Stood in for: ``_forward_prepare`` (writes the given query where the engine
says), the backend (takes the call and ends it), the parallel state (this rank of this many).
"""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from dsv4_conformance.implementations import sglang_engine as engine
from dsv4_conformance.implementations import sglang_release as release

HEAD_DIM = 512
ROPE_DIM = 64
PARAMETERS = {
    "head_dim": HEAD_DIM,
    "qk_rope_head_dim": ROPE_DIM,
    "rope_head_dim": ROPE_DIM,
    "hidden_size": HEAD_DIM,
    "dim": HEAD_DIM,
    "compress_ratio": 0,
    "layer_id": 0,
    "alt_streams": None,
    "compressor": None,
    "indexer": None,
    "dsa_enable_prefill_cp": False,
    "_multi_stream_bs_limit": 0,
    "is_dsv41": False,
    "q_head_norm": True,
    "use_mega_attention": False,
    "wo_a_fp8": False,
}
"""What forward reads of a V4 layer before it calls the backend, whatever the release."""


class _HandedOver(Exception):
    """Ends a forward at the backend."""

    def __init__(self, q: Tensor, sink: Tensor) -> None:
        super().__init__("the attention backend was called")
        self.q, self.sink = q, sink


class _Backend:
    forward_metadata = None

    def forward(self, q: Tensor, *_given: Any, attn_sink: Tensor, **_named: Any) -> Tensor:
        raise _HandedOver(q, attn_sink)


class _No:
    """A forward mode or platform that is nothing special: every question is answered with no."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Falsehood()


class _Falsehood:
    def __bool__(self) -> bool:
        return False

    def __call__(self, *_given: Any, **_named: Any) -> bool:
        return False


class RankLayer:
    """An ``MQALayer`` of ``n_heads`` heads in all on one of ``tp`` ranks; its sink parameter is the tensor given."""

    def __init__(self, n_heads: int, rank: int, tp: int, sink: Tensor) -> None:
        self.module = engine.module(release.MODEL)
        self.local, self.rank, self.tp = n_heads // tp, rank, tp
        layer = object.__new__(engine.attribute(release.MODEL, "MQALayer"))
        nn.Module.__init__(layer)
        parallel = {"tp_size": tp, "tp_rank": rank, "attn_tp_size": tp, "attn_tp_rank": rank}
        heads = {"n_heads": n_heads, "n_local_heads": self.local}
        layer.__dict__.update(PARAMETERS | parallel | heads)
        layer.attn_sink = nn.Parameter(sink, requires_grad=False)
        # What the constructor sets: the parameter itself, in releases that look at tp there; else at the first call.
        early = tp == 1 and not hasattr(type(layer), "_local_attn_sink")
        layer._attn_sink_local = layer.attn_sink if early else None
        layer.attn_mqa = SimpleNamespace(layer_id=0, v_head_dim=HEAD_DIM)
        layer.__dict__["_forward_prepare"] = self._prepare
        self.layer = layer
        self._q: Tensor | None = None

    def _prepare(self, _x: Tensor, _positions: Tensor, _batch: Any, _backend: Any, q_out: Any, **_named: Any) -> Any:
        assert self._q is not None
        if q_out is None:
            return self._q, None
        q_out.copy_(self._q)
        return q_out, None

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Query and sink that the kernel is given for q bf16 ``(T, n_local, 512)``."""
        self._q = q
        x = q.new_zeros(len(q), HEAD_DIM)
        positions = torch.arange(len(q), device=q.device)
        with ExitStack() as stack, torch.no_grad():
            for name, replacement in self._surroundings().items():
                if hasattr(self.module, name):
                    stack.enter_context(mock.patch.object(self.module, name, replacement))
            try:
                self.layer.forward(x, positions, SimpleNamespace(forward_mode=_No()))
            except _HandedOver as handed:
                return handed.q, handed.sink.detach()
        raise AssertionError("MQALayer.forward did not call the attention backend.")

    def _surroundings(self) -> dict[str, Any]:
        """What the forward asks of the process it runs in."""
        backend = _Backend()
        parallel = SimpleNamespace(tp_size=self.tp, attn_tp_size=self.tp, attn_tp_rank=self.rank)
        return {
            "get_attn_backend": lambda: backend,
            "get_attn_tp_context": lambda: SimpleNamespace(input_scattered=True),
            "get_parallel": lambda: parallel,
            "get_forward": lambda: SimpleNamespace(sp_active=False),
            "get_platform": _No,
            "get_token_to_kv_pool": lambda: SimpleNamespace(uniform_fp8=False),
            "is_cp_active": lambda _batch: False,
        }

    def refresh(self) -> None:
        """What the engine does after a weight update, if this release does anything."""
        refresh = getattr(self.layer, "refresh_attn_sink_cache", None)
        if refresh is not None:
            refresh()

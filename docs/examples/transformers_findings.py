"""Departures of the DeepSeek-V4 model of Hugging Face transformers, on the bare release.

Needs torch and transformers 5.17 or newer, nothing else. Each line says what should be equal, finite or complete, and
how far it is from that. docs/engines.md has the arguments.
"""

from collections.abc import Callable

import torch
import transformers
from torch import Tensor
from transformers import DeepseekV4Config, DynamicCache
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as model_of

TYPES = {"C0": "sliding_attention", "C4": "compressed_sparse_attention", "C128": "heavily_compressed_attention"}


def model(kind: str) -> torch.nn.Module:
    """A model of one layer with random weights."""
    torch.manual_seed(0)
    config = DeepseekV4Config(
        vocab_size=97,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=1,
        layer_types=[TYPES[kind]],
        mlp_layer_types=["moe"],
        num_attention_heads=8,
        q_lora_rank=32,
        num_experts_per_tok=2,
        n_routed_experts=4,
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=4,
        max_position_embeddings=4096,
    )
    made = model_of.DeepseekV4Model(config).eval()
    for name, weight in made.named_parameters():
        if weight.dim() > 1:
            weight.normal_(std=weight.shape[-1] ** -0.5)
        elif "sinks" in name:
            weight.normal_()
    return made


def apart(one: Tensor, other: Tensor) -> str:
    """The largest difference as a share of the largest value."""
    share = float((one - other).abs().max() / other.abs().max())
    return f"differs by {share:.1e} of the largest value"


def left_padded(kind: str) -> str:
    """A prompt of 290 tokens behind 10 masked ones, as a batch of unequal prompts is run."""
    net, ids = model(kind), torch.randint(97, (1, 300))
    mask = torch.ones_like(ids)
    mask[:, :10] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = net(ids, attention_mask=mask, position_ids=places).last_hidden_state[:, 10:]
    return apart(padded, net(ids[:, 10:]).last_hidden_state)


def right_padded(kind: str) -> str:
    """The same prompt before 10 masked tokens."""
    net, ids = model(kind), torch.randint(97, (1, 300))
    mask = torch.ones_like(ids)
    mask[:, -10:] = 0
    return apart(net(ids, attention_mask=mask).last_hidden_state[:, :-10], net(ids[:, :-10]).last_hidden_state)


def packed(kind: str) -> str:
    """130 tokens and, behind them in the same row, 170 of another sequence whose positions start at 0 again."""
    net, ids = model(kind), torch.randint(97, (1, 300))
    places = torch.cat((torch.arange(130), torch.arange(170)))[None]
    whole = net(ids, position_ids=places, use_cache=False).last_hidden_state[:, 130:]
    return apart(whole, net(ids[:, 130:]).last_hidden_state)


def reordered(kind: str) -> str:
    """Two sequences on one cache change places, as beams do; then one token each."""
    net, ids = model(kind), torch.randint(97, (2, 258))
    caches = [DynamicCache(config=net.config), DynamicCache(config=net.config)]
    for cache, order in zip(caches, ([0, 1], [1, 0]), strict=True):
        net(ids[order, :257], **{CACHE: cache}, use_cache=True)
    caches[0].reorder_cache(torch.tensor([1, 0]))
    rows = [net(ids[[1, 0], 257:], **{CACHE: cache}, use_cache=True).last_hidden_state for cache in caches]
    return apart(rows[0], rows[1])


def infinite_sink(kind: str) -> str:
    """One sink is +inf: that head's output is 0 by the formula."""
    net = model(kind)
    net.layers[0].self_attn.sinks[3] = torch.inf
    wrong = int(net(torch.randint(97, (1, 300))).last_hidden_state.isnan().any(-1).sum())
    return f"{wrong} of 300 rows are NaN"


def infinite_scores(kind: str) -> str:
    """A token that sees 8 entries, fewer than are selected, and scores them all -inf: each is still to be selected."""
    indexer = model(kind).layers[0].self_attn.compressor.indexer
    indexer.index_topk = 16
    indexer.scorer.register_forward_hook(lambda *given: torch.full_like(given[-1], -torch.inf))
    picks = indexer(torch.randn(1, 200, 64), torch.randn(1, 200, 32), torch.arange(200)[None], None, 0)
    return f"selects {int((picks[0, 31] >= 0).sum())} of them"


CACHE = "cache" if int(transformers.__version__.split(".")[1]) > 23 else "past_key_values"
CHECKS: dict[Callable[[str], str], tuple[str, ...]] = {
    left_padded: ("C0", "C4", "C128"),
    right_padded: ("C0", "C4", "C128"),
    packed: ("C0", "C4", "C128"),
    reordered: ("C0", "C4", "C128"),
    infinite_sink: ("C0",),
    infinite_scores: ("C4",),
}

if __name__ == "__main__":
    torch.set_grad_enabled(False)
    print("transformers", transformers.__version__)
    for check, kinds in CHECKS.items():
        for kind in kinds:
            print(f"{check.__name__} {kind}: {check(kind)}")

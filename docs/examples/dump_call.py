"""Save one sparse attention call of a live server for ``dsv4-conformance judge``. Needs torch and safetensors."""

import torch
from safetensors.torch import save_file


def dump_decode(path, q, scale, sink, out, lse, **scopes):
    """``window=(k_cache, indices, topk_length)`` and, if there is one, ``extra=(...)``, all as the kernel got them."""
    tensors, notes = {"q": q, "sink": sink, "out": out, "lse": lse}, {"kind": "decode", "scale": repr(scale)}
    for name, (cache, indices, length) in scopes.items():
        count, size = cache.shape[:2]
        raw = cache.view(torch.uint8).as_strided((count, 584 * size), (cache.stride(0), 1))
        used = torch.unique(indices[(indices >= 0) & (indices < count * size)] // size).long()
        tensors |= {f"{name}_pages": raw[used], f"{name}_page_ids": used}
        tensors |= {f"{name}_indices": indices, f"{name}_topk_length": length}
        notes[f"{name}_page_size"] = str(size)
    save_file({k: t.contiguous().cpu().clone() for k, t in tensors.items() if t is not None}, path, notes)

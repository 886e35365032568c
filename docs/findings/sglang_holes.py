"""SGLang's combined index rows: a hole (-1) of the selection becomes a row of the request before.

Needs sglang and triton alone; on a GPU, or on a CPU in the interpreter (0.5.18 or newer there). Prints the row of
the second of two requests, whose compressed rows begin at workspace row 10.
"""

import builtins
import importlib
import importlib.util
import os
import sys
import types
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

MODULE = "sglang.srt.layers.attention.dsv4.sparse_prefill_utils"


def stand_in():
    """Where torchvision is absent (it is for CPU torch), modules that can be imported and do nothing."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    importlib.import_module("transformers.utils.import_utils").is_torchvision_available()  # remembered as absent

    def nothing(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()

    for name in ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional"):
        module = sys.modules["torchvision" + name] = types.ModuleType("torchvision" + name)
        module.__spec__, module.__path__ = ModuleSpec(module.__name__, None, is_package=True), []
        module.__getattr__ = nothing


def tensors(*bounds):
    """The interpreter loops over Python integers, which have no ``.to``: give the kernel what a GPU would."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if not any(isinstance(bound, tl.tensor) for bound in bounds):
        return builtins.range(*bounds)
    numbers = builtins.range(*(int(bound) for bound in bounds))
    return (tl.tensor(TensorHandle(np.array([n], np.int32), tl.int32), tl.int32) for n in numbers)


def main():
    """Two requests with one new token each, of 40 and 24 tokens; the second selects entries 4, none, 2 and 0."""
    stand_in()
    engine = importlib.import_module(MODULE)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def int32(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    if device == "cpu":
        for name in ("sglang.kernels.ops.attention.dsv4.sparse_prefill_kernels", engine.__name__):
            if name in sys.modules:
                sys.modules[name].range = tensors
    selection = int32([0, 1, 2, 3], [4, -1, 2, 0])
    given = {
        "topk_indices": selection,
        "query_start_loc": int32(0, 1, 2),
        "query_pos": int32(39, 23),
        "seq_lens": int32(40, 24),
        "gather_lens": int32(40, 24),
        "compressed_base": int32(0, 10),
        "swa_base": int32(16, 56),
        "window_size": 128,
        "compress_ratio": 4,
        "topk": 4,
    }
    known = engine.combine_topk_swa_indices.__code__.co_varnames
    rows, _ = engine.combine_topk_swa_indices(**{name: value for name, value in given.items() if name in known})
    print("selected", selection[1].tolist(), "combined", rows[1, :4].tolist(), "right", [14, -1, 12, 10])


if __name__ == "__main__":
    main()

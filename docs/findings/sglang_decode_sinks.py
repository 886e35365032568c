"""SGLang's Triton decode takes a sink that is too short, and reads what lies behind it.

Needs sglang (any release from 0.5.13.post1 on) and triton alone; on a GPU, or on a CPU in Triton's interpreter. Prints
by what the last head's output is multiplied when a value changes that is not part of the call.
"""

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
    from triton.runtime import autotuner

    # The interpreter has no GPU to time on: the first configuration is taken.
    autotuner.Autotuner.run = lambda self, *given, **named: self.fn.run(*given, **named, **self.configs[0].kwargs)

MODULES = (
    "sglang.kernels.ops.attention.dsv4.triton_sparse_decode",
    "sglang.kernels.ops.attention.nsa_triton_decode",
    "sglang.srt.layers.attention.nsa.triton_decode",
)
HEADS, PAGE = 16, 64


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


def kernel():
    """The decode function of whichever release is installed."""
    for name in MODULES:
        try:
            return importlib.import_module(name).triton_fp8_attention_fwd
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("sglang"):
                raise
    raise SystemExit("this release has no triton_fp8_attention_fwd")


def main():
    """Decode one row with 16 heads under 15 sinks, the memory behind them holding 0, then 50."""
    stand_in()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    page_bytes = -(-PAGE * 584 // 576) * 576
    pages = torch.zeros(1, page_bytes, dtype=torch.uint8, device=device)
    pages[:, : PAGE * 576].view(1, PAGE, 576)[..., :448] = 0x38  # fp8 1.0
    pages[:, PAGE * 576 : PAGE * 584] = 127  # scales of 1
    view = pages.as_strided((1, PAGE, 1, 584), (page_bytes, 584, 584, 1))
    q = torch.zeros(1, 1, HEADS, 512, dtype=torch.bfloat16, device=device)
    indices = torch.arange(PAGE, dtype=torch.int32, device=device).view(1, 1, PAGE)
    memory = torch.zeros(HEADS, device=device)
    outputs = []
    for behind in (0.0, 50.0):
        memory[-1] = behind
        out, _ = kernel()(q, view, 512, 512**-0.5, indices, attn_sink=memory[:-1])
        outputs.append(out[0, 0, -1, 0].item())
    print(f"head {HEADS - 1} of {HEADS} under {HEADS - 1} sinks: times {outputs[1] / outputs[0]:.3g}; 1 is right")


if __name__ == "__main__":
    main()

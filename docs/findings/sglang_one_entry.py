"""SGLang's Triton decode on lists of one entry: ptxas 12.8.93 takes an address from a register that nobody wrote.

Needs sglang (0.5.14 or newer) and triton 3.6.0 alone; other versions of triton make other code, and show nothing:
`pip install --no-deps --target DIR triton==3.6.0`, and PYTHONPATH=DIR.

Compiles one of the kernel's configurations for Hopper, which needs no GPU, and prints the uniform registers that the
machine code reads before it writes them. On a Hopper GPU it then decodes lists of one entry with that configuration:
wrong lse, or an illegal memory access. TRITON_PTXAS_PATH names another ptxas; Triton keeps what it compiled, so give it
another TRITON_CACHE_DIR too.
"""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import types
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

MODULES = (
    "sglang.kernels.ops.attention.dsv4.triton_sparse_decode",
    "sglang.kernels.ops.attention.nsa_triton_decode",
    "sglang.srt.layers.attention.nsa.triton_decode",
)
FUSED = ".triton_mla_kernels_decode_fused"
HEADS, PAGE, ROWS = 16, 64, 1024
PAGE_BYTES = -(-PAGE * 584 // 576) * 576
POINTERS = {"Q": "*bf16", "KV_Cache": "*u8", "Indices": "*i32", "Output": "*bf16"}


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


def decode_module():
    """The decode package of whichever release is installed."""
    for name in MODULES:
        try:
            importlib.import_module(name + FUSED)
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("sglang"):
                raise
    raise SystemExit("this release has no fused decode kernel")


def machine_code(kernel, config, width):
    """What nvdisasm prints of one configuration for lists of ``width`` entries, no lengths and no sinks, on sm_90."""
    row = HEADS * 512
    sizes = {"total_tokens": ROWS, "total_tokens_bucket": ROWS, "h_q": HEADS, "topk": width, "num_blocks": 4}
    sizes |= {"block_size": PAGE, "s_q": 1, "stride_kv_block": PAGE_BYTES, "stride_idx_t": width, "stride_idx_k": 1}
    sizes |= {"stride_q_t": row, "stride_q_h": 512, "stride_q_d": 1, "stride_o_t": row, "stride_o_h": 512}
    sizes |= {"stride_o_d": 1, "stride_lse_t": HEADS, "stride_lse_h": 1}
    fixed = {"HAS_TOPK_LENGTH": False, "HAS_ATTN_SINK": False, **config.kwargs}
    fixed |= {name: 1 for name, size in sizes.items() if size == 1}  # as a launch does with arguments of 1
    signature, constants, hints = {}, {}, {}
    for at, name in enumerate(kernel.arg_names):
        if name in fixed:
            signature[name], constants[(at,)] = "constexpr", fixed[name]
        elif name in sizes:
            signature[name] = "i32"
        else:
            signature[name] = "fp32" if name == "sm_scale" else POINTERS.get(name, "*fp32")
        if signature[name].startswith("*") or (signature[name] == "i32" and sizes[name] % 16 == 0):
            hints[(at,)] = [["tt.divisibility", 16]]
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    source = ASTSource(kernel, signature, constants, hints)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def never_written(listing):
    """The additions that read a uniform register to which no instruction above them has written."""
    instruction = r"/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?(\S+) (.*?) ?;"
    written, found = set(), []
    for address, name, operands in re.findall(instruction, listing):
        first, _, others = operands.partition(",")
        if name.startswith("UIADD3"):
            lost = {int(number) for number in re.findall(r"\bUR(\d+)\b", others)} - written
            found += [f"{address}: {name} {operands} (UR{number})" for number in sorted(lost)]
        if target := re.fullmatch(r"UR(\d+)", first.strip()):
            number = int(target[1])
            written |= {number, number + 1} if ".64" in name or "WIDE" in name else {number}
    return found


def count_wrong(module):
    """How many lse of lists of one entry, whose keys are all ones, are off by more than 1e-3."""
    torch.manual_seed(0)
    pages = torch.zeros(4, PAGE_BYTES, dtype=torch.uint8, device="cuda")
    rows = pages[:, : PAGE * 576].view(4, PAGE, 576)
    rows[..., :448] = 0x38  # fp8 1.0
    rows[..., 448:] = torch.ones(64, dtype=torch.bfloat16, device="cuda").view(torch.uint8)
    pages[:, PAGE * 576 : PAGE * 584] = 127  # scales of 1
    view = pages.as_strided((4, PAGE, 1, 584), (PAGE_BYTES, 584, 584, 1))
    q = torch.randn(ROWS, 1, HEADS, 512, device="cuda").to(torch.bfloat16)
    indices = (torch.arange(ROWS, device="cuda") % (4 * PAGE)).view(ROWS, 1, 1).to(torch.int32)
    _, lse = module.triton_fp8_attention_fwd(q, view, 512, 512**-0.5, indices)
    right = q.double().sum(-1) * 512**-0.5
    return int(((lse.double().view_as(right) - right).abs() > 1e-3).sum()), right.numel()


def main():
    """Print what the machine code reads, for lists of one entry and of 64; on a GPU, the results of ten calls."""
    stand_in()
    module = decode_module()
    tuned = importlib.import_module(module.__name__ + FUSED)._fused_gather_attn_dsv4_kernel
    wanted = {"BLOCK_H": 64, "BLOCK_N": 32}
    tuned.configs = [config for config in tuned.configs if config.kwargs == wanted and config.num_warps == 4]
    if not tuned.configs:
        raise SystemExit(f"this release does not tune over {wanted} with 4 warps")
    asked, used = os.environ.get("TRITON_PTXAS_PATH"), triton.knobs.nvidia.ptxas.path
    if asked and not os.path.samefile(used, asked if os.path.exists(asked) else os.devnull):
        raise SystemExit(f"TRITON_PTXAS_PATH is {asked}, and Triton would use {used}; name a ptxas that runs here")
    told = subprocess.run([used, "--version"], capture_output=True, text=True, check=True).stdout
    print("triton", triton.__version__, "ptxas", re.search(r"V([\d.]+)", told)[1])
    for width in (1, 64):
        lines = never_written(machine_code(tuned.fn, tuned.configs[0], width))
        print(f"lists of {width}: {'; '.join(lines) or 'nothing is read before it is written'}")
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:
        for turn in range(10):
            wrong, all_of_them = count_wrong(module)
            print(f"call {turn}: {wrong} of {all_of_them} lse are wrong", flush=True)


if __name__ == "__main__":
    main()

"""Makes the example dumps right.safetensors and wrong.safetensors beside this file (or in the folder given).

The stand-in for a kernel is the oracle, rounded as a kernel rounds. In the wrong dump it loses one key: place 37 of the
window list of row 1.
"""

import sys
from dataclasses import replace
from pathlib import Path

from dump_call import dump_decode

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.oracle.attention import attention

CASE = AttentionCase(
    "SparseDecode",
    b=2,
    s_q=1,
    h_q=8,
    window=ScopeShape(slots=60, topk=64, page_size=64, lengths="full"),
    extra=ScopeShape(slots=16, topk=64, page_size=2),
    sink="finite",
    holes="none",
    poison="none",
)
LOST = (1, 37)


def main(folder: Path) -> None:
    """Write both files."""
    call = build(CASE, "cpu")
    scopes = {"window": (call.window.pages, call.window.indices, call.window.topk_length)}
    scopes["extra"] = (call.extra.pages, call.extra.indices, call.extra.topk_length)
    shortened = call.window.indices.clone()
    shortened[LOST[0], 0, LOST[1]] = -1
    wrong = replace(call, window=replace(call.window, indices=shortened))
    for name, computed in (("right", call), ("wrong", wrong)):
        answer = attention(problem_of(computed))
        out, lse = answer.out.bfloat16().view(call.q.shape), answer.lse.float()[:, :, None]
        dump_decode(folder / f"{name}.safetensors", call.q, call.scale, call.sink, out, lse, **scopes)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

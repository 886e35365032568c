"""A tensor-parallel layer in processes of its own: one rank each, one GPU each, summed over NCCL (gloo on a CPU).

Each rank opens the layer on its device and runs the same schedule; outputs are summed over the group as an engine sums
them, and rank 0 holds heads and sums against the same layer on one rank, and every row against the oracle.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.errors import BadInput, ConformanceFailure
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.numerics.state import close
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.subject import Subject

BF16_APART = 2.0**-7
"""Two bfloat16 layers may differ by this much of the largest value: each is also judged against the oracle."""


@dataclass(frozen=True)
class RanksVerdict:
    """``sentence``: what is wrong, or None. ``worst``: largest difference between the ranks together and the whole
    layer, as a share of the largest value, by output."""

    sentence: str | None
    worst: dict[str, float]
    devices: tuple[str, ...]


def run_ranks(impl: str, case: LayerCase, device: str) -> RanksVerdict:
    """Run ``case`` on ``case.tp`` ranks at once. Raises BadInput if there are fewer GPUs than ranks."""
    if device == "cuda" and torch.cuda.device_count() < case.tp:
        raise BadInput(f"tp is {case.tp} and {torch.cuda.device_count()} GPUs are visible; give each rank one.")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(_free_port())
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    workers = [context.Process(target=_rank, args=(rank, impl, case, device, answers)) for rank in range(case.tp)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    verdicts = []
    while not answers.empty():
        verdicts.append(answers.get())
    silent = [rank for rank, worker in enumerate(workers) if worker.exitcode]
    # A rank that loses its peers complains of that; the cause is what the others say.
    told = [sentence for _, sentence, _, _ in verdicts if sentence]
    wrong = sorted(told, key=lambda sentence: "DistBackendError" in sentence or "Connection closed" in sentence)
    if silent and not wrong:
        wrong = [f"rank {silent[0]} ended with exit code {workers[silent[0]].exitcode}"]
    worst: dict[str, float] = next((found for rank, _, found, _ in verdicts if rank == 0), {})
    return RanksVerdict(wrong[0] if wrong else None, worst, tuple(name for *_, name in sorted(verdicts)))


def _rank(rank: int, impl: str, case: LayerCase, device: str, answers: Any) -> None:
    where = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(where)
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name(where) if device == "cuda" else "CPU"
    sentence: str | None = None
    worst: dict[str, float] = {}
    try:
        dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=case.tp)
        worst = _compared(rank, impl, case, where)
    except ConformanceFailure as error:
        sentence = f"rank {rank}: {error}"
    except Exception as error:
        sentence = f"rank {rank}: {type(error).__name__}: {error}"
    answers.put((rank, sentence, worst, f"{where}: {name}"))
    if dist.is_initialized() and sentence is None:
        dist.destroy_process_group()


def _compared(rank: int, impl: str, case: LayerCase, where: torch.device) -> dict[str, float]:
    adapter = load(impl)(str(where))
    run = LayerRun(Subject(adapter, where, "INV-50"), case.with_(rank=rank)).run()
    sinks = [torch.empty_like(run.session.sink()) for _ in range(case.tp)]
    dist.all_gather(sinks, run.session.sink().contiguous())
    if rank == 0:
        heads = run.spec.geometry.num_attention_heads // case.tp
        for other in range(1, case.tp):
            if torch.equal(sinks[0][:heads], sinks[other][:heads]):
                raise ConformanceFailure(f"ranks 0 and {other} hold the same sinks.")
        whole = LayerRun(Subject(adapter, where, "INV-50"), case.with_(tp=1)).run()
    worst = {"o": 0.0, "out": 0.0}
    for sequence in run.streams:
        o, out = run.output(sequence)
        shares = [torch.empty_like(o) for _ in range(case.tp)]
        dist.all_gather(shares, o.contiguous())
        total = out.clone()
        dist.all_reduce(total)
        if rank == 0:
            right = whole.output(sequence)
            for name, got, want in zip(worst, (torch.cat(shares, 1), total), right, strict=True):
                worst[name] = max(worst[name], _apart(name, got, want, case))
    return worst


def _apart(name: str, got: Tensor, want: Tensor, case: LayerCase) -> float:
    """The largest difference as a share of the largest value. Raises ConformanceFailure beyond the precision's room."""
    share = float((got.double() - want.double()).abs().max() / want.double().abs().max())
    if case.precision == "float32":
        verdict = close(name, got, want.to(torch.float64))
        if not verdict.passed:
            raise ConformanceFailure(f"the ranks together: {verdict.sentence()}.")
    elif not share <= BF16_APART:
        raise ConformanceFailure(f"the ranks together: {name} differs by {share:.3g} of its largest value.")
    return share


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

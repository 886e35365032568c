"""A few made-up questions in the files of the real sets, and a simulated server that knows them."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from dsv4_conformance.accuracy import data
from dsv4_conformance.accuracy.client import Endpoint
from dsv4_conformance.accuracy.simulator.answering import Questions
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.accuracy.simulator.server import Server, in_thread
from dsv4_conformance.accuracy.tasks import TASKS

GSM8K = 24
AIME = 6


def write_questions(folder: Path) -> None:
    """24 sums as GSM8K, 6 as its worked examples, 6 products as AIME25."""
    _write(folder / "gsm8k_test.jsonl", [_sum(n) for n in range(GSM8K)])
    _write(folder / "gsm8k_train.jsonl", [_sum(n) for n in range(100, 106)])
    products = [{"problem": f"What is ${n} \\cdot 7$?", "answer": str(7 * n)} for n in range(11, 11 + AIME)]
    _write(folder / "aime25.jsonl", products)


def _sum(n: int) -> dict[str, str]:
    return {
        "question": f"Ada has {n} pens and buys 1,200. How many has she?",
        "answer": f"She has {n}+1200 = <<{n}+1200={n + 1200}>>{n + 1200} pens.\n#### {n + 1200:,}",
    }


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@contextlib.contextmanager
def served(behaviour: Behaviour) -> Iterator[tuple[str, Server]]:
    """A simulated server with the questions of DSV4_DATA_DIR; gives its address and itself."""
    sets = [(task, data.load(task.questions, verify=False).rows) for task in TASKS.values()]
    server = Server(Questions(sets, behaviour), behaviour)
    with in_thread(server) as url:
        yield url, server


def endpoint(url: str, **other: object) -> Endpoint:
    """An endpoint that is asked quickly: short waits, few at once."""
    settings: dict[str, object] = {"concurrency": 8, "backoff_s": 0.01, "deadline_s": 20.0, **other}
    return Endpoint(url, **settings)  # type: ignore[arg-type]

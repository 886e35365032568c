"""Workers of a soak that end between cases, in place of those that judge."""

import os
from multiprocessing.connection import Connection
from pathlib import Path

from dsv4_conformance.soak.worker import Setup


def always(setup: Setup, pipe: Connection) -> None:
    """End with every chunk that is given, before any case of it."""
    pipe.send(("ready",))
    pipe.recv()
    os._exit(9)


def once(setup: Setup, pipe: Connection) -> None:
    """The first process of all ends so, which ``setup.impl``, a path, remembers; the next ones judge all right."""
    pipe.send(("ready",))
    flag = Path(setup.impl)
    while (told := pipe.recv()) is not None:
        if not flag.exists():
            flag.touch()
            os._exit(9)
        for number in told[0]:
            pipe.send(("start", number, {"surface": "SlotMapping"}))
            pipe.send(("judged", "PASS", "SlotMapping"))
        pipe.send(("done",))


def never_again(setup: Setup, pipe: Connection) -> None:
    """A case ends the first process; those that take its place end before they are ready."""
    flag = Path(setup.impl)
    if flag.exists():
        os._exit(3)
    flag.touch()
    pipe.send(("ready",))
    number, *_ = pipe.recv()[0]
    pipe.send(("start", number, {"surface": "SlotMapping", "test": "test_it", "case_id": "INV-61-00000001"}))
    os._exit(9)

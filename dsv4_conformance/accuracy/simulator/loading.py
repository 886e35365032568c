"""Which questions the simulated server knows: those of the tasks whose data is at hand."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4_conformance.accuracy import data
from dsv4_conformance.accuracy.harness import torch_ignored
from dsv4_conformance.accuracy.simulator.answering import Questions
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.accuracy.tasks import TASKS, Task, task
from dsv4_conformance.errors import BadInput
from dsv4_conformance.texts import counted


def known_questions(names: Sequence[str], behaviour: Behaviour, *, verify: bool = True) -> tuple[Questions, str]:
    """The questions of the tasks ``names``, and a description; of all tasks that can be loaded if there are no names.

    Raises BadInput if a named task cannot be loaded, or none at all can, or the behaviour names an unknown question.
    """
    sets: list[tuple[Task, tuple[data.Row, ...]]] = []
    problems = []
    for wanted in [task(name) for name in names] or TASKS.values():
        try:
            with torch_ignored():
                sets.append((wanted, data.load(wanted.questions, verify=verify).rows))
        except BadInput as error:
            if names:
                raise
            problems.append(str(error))
    if not sets:
        raise BadInput(problems[0])
    items = {row.id for _, rows in sets for row in rows}
    for item in (*behaviour.broken_items, *behaviour.refuse):
        if item not in items:
            raise BadInput(f"There is no question {item!r}; ids run from {sets[0][1][0].id} to {sets[-1][1][-1].id}.")
    told = ", ".join(f"{counted(len(rows), 'question')} of {wanted.name}" for wanted, rows in sets)
    return Questions(sets, behaviour), told

"""Rules of the gate per profile and task; the numbers are in profiles.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dsv4_conformance.errors import BadInput, HarnessError

DEFAULT = "pre-merge"

Share = Annotated[float, Field(gt=0, lt=1)]


class Rule(BaseModel):
    """How one task is judged; profiles.toml says what each number means. Scores and rates are fractions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    margin: Share
    looks: tuple[int, ...] = Field(min_length=1, max_length=3)
    golden_runs: int = Field(ge=2)
    pass_alpha: Share
    fail_alpha: Share
    floor: Share
    item_rate: float = Field(ge=0, lt=1)
    truncated: Share
    no_answer: Share
    rate_alpha: Share
    errors: Share
    tokens: tuple[float, float]
    tokens_do: Literal["warn", "fail"]

    @model_validator(mode="after")
    def _in_order(self) -> Rule:
        if list(self.looks) != sorted({look for look in self.looks if look > 0}):
            raise ValueError("looks must be whole numbers from 1 on, each larger than the one before")
        if self.floor < self.margin / 2:
            raise ValueError("floor must not be below half the margin")
        if not 0 < self.tokens[0] < 1 < self.tokens[1]:
            raise ValueError("tokens must be a range around 1")
        return self

    @property
    def pass_confidence(self) -> float:
        """Confidence of one look's PASS, Bonferroni over the looks."""
        return 1 - self.pass_alpha / len(self.looks)

    @property
    def fail_confidence(self) -> float:
        """Confidence of one look's FAIL, Bonferroni over the looks."""
        return 1 - self.fail_alpha / len(self.looks)

    def look(self, passes: int) -> int | None:
        """The last look that ``passes`` complete passes allow; None where they are too few for the first."""
        return max((look for look in self.looks if look <= passes), default=None)

    def next_look(self, passes: int) -> int | None:
        """The look after ``passes``; None where there is none left."""
        return min((look for look in self.looks if look > passes), default=None)


@cache
def load_rules() -> dict[str, dict[str, Rule]]:
    """Profile -> task -> rule. Raises HarnessError if the data file is broken."""
    text = resources.files("dsv4_conformance.accuracy").joinpath("profiles.toml").read_text(encoding="utf-8")
    return read_rules(text)


def read_rules(text: str) -> dict[str, dict[str, Rule]]:
    """Rules of a TOML text. Raises HarnessError naming the entry that is malformed."""
    found: dict[str, dict[str, Rule]] = {}
    for profile, tasks in tomllib.loads(text).items():
        for task, table in tasks.items():
            try:
                found.setdefault(profile, {})[task] = Rule.model_validate(table)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, (profile, task, *first["loc"])))
                raise HarnessError(f"accuracy/profiles.toml, {where}: {first['msg']}") from None
    return found


def rule_of(profile: str, task: str) -> Rule:
    """The rule of ``task`` in ``profile``; profiles without rules of their own are judged as pre-merge.

    Raises BadInput for a task without a rule.
    """
    rules = load_rules()
    tasks = rules.get(profile, rules[DEFAULT])
    if task not in tasks:
        raise BadInput(f"There is no gate for the task {task!r}; there is one for {', '.join(tasks)}.")
    return tasks[task]

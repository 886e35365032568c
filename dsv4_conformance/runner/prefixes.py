"""Two prompts that begin alike, led through a session of PrefixReuse; every computed row is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.cases.extent_case import PrefixCase
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import spec_of, tokens, weights_root
from dsv4_conformance.errors import ContractViolation
from dsv4_conformance.implementations.extent_api import PrefixConvention, TokenSegment
from dsv4_conformance.implementations.state_api import LayerResult
from dsv4_conformance.numerics.layer import judge_rows
from dsv4_conformance.runner.layer_run import Rows
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject

FIRST, SECOND, AGAIN = 0, 1, 2
DECODED = 2
OTHER_IDS = 1 << 20


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two prompts have in common from the start."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass
class Prompt:
    """Ids and rows ``x (n, hidden)`` of a prompt and of what is decoded after it; ``held`` tokens are in the cache."""

    ids: tuple[int, ...]
    x: Tensor
    held: int = 0


class PrefixRun:
    """A session opened for ``case``, its prompts, and what has been computed of them."""

    def __init__(self, subject: Subject, case: PrefixCase) -> None:
        self.subject, self.case, self.device = subject, case, subject.device
        layer = LayerCase(
            "AttentionLayer",
            case.ratio,
            f"p0:{max(case.first, case.second) + DECODED}+1:1",
            precision=case.precision,
            quantised=case.quantised,
            seed=case.seed,
        )
        self.spec = spec_of(layer, self.device)
        self.session: Opened = subject.open("open_prefix_cache", self.spec)
        root, hidden = weights_root(layer), self.spec.geometry.hidden_size
        mine, theirs = (tokens(root, number, 0, self.spec.max_tokens, hidden, self.device) for number in (0, 1))
        length = case.first + DECODED
        self.prompts = {FIRST: Prompt(tuple(range(length)), mine[:length])}
        ids = list(range(case.second + DECODED))
        ids[case.shared :] = [token if case.again else OTHER_IDS + token for token in ids[case.shared :]]
        if case.shared < len(ids):
            ids[case.shared] = OTHER_IDS + case.shared
        x = torch.cat((mine[: case.shared], theirs[case.shared : len(ids)]))
        self.prompts[SECOND] = Prompt(tuple(ids), x)
        self.prompts[AGAIN] = Prompt(self.prompts[FIRST].ids, mine[:length])

    @property
    def granularity(self) -> int:
        """Tokens in whose multiples the adapter declares to share prefixes."""
        convention = self.subject.implementation.surfaces["PrefixReuse"]
        assert isinstance(convention, PrefixConvention)
        return convention.granularity

    def length(self, sequence: int) -> int:
        """Tokens of the sequence's prompt."""
        return self.case.second if sequence == SECOND else self.case.first

    def prompt(self, sequence: int) -> tuple[int, ...]:
        """Ids of its prompt."""
        return self.prompts[sequence].ids[: self.length(sequence)]

    def admit(self, sequence: int) -> int:
        """Admit a prompt; the tokens that the cache has of it, which must be what lookup said and fewer than it has."""
        ids = self.prompt(sequence)
        said, hit = self.session.lookup(ids), self.session.admit(sequence, ids)
        for name, value in (("lookup", said), ("admit", hit)):
            if not isinstance(value, int) or not 0 <= value < len(ids):
                raise ContractViolation(f"{name} answered {value!r} for a prompt of {len(ids)} tokens.")
        self.subject.expect(said == hit, f"lookup promised {said} tokens of a prompt and admit took {hit}.")
        self.prompts[sequence].held = hit
        return int(hit)

    def hold(self, sequence: int, ids: tuple[int, ...]) -> None:
        """Have a prompt of these ids computed, on rows that are nobody else's; it is not judged, and lives on."""
        rows = torch.cat([prompt.x for prompt in self.prompts.values()])
        self.prompts[sequence] = Prompt(ids, rows.flip(0)[: len(ids)])
        held = int(self.session.admit(sequence, ids))
        self.prompts[sequence].held = held
        self.advance(sequence, len(ids) - held, "prefill", judge=False)

    def run(self, sequence: int, decoded: int = DECODED, judge: bool = True) -> None:
        """Compute the rest of an admitted prompt, then ``decoded`` tokens; judge every row."""
        self.advance(sequence, self.length(sequence) - self.prompts[sequence].held, "prefill", judge)
        for _ in range(decoded):
            self.advance(sequence, 1, "decode", judge)

    def advance(self, sequence: int, count: int, mode: str, judge: bool = True) -> None:
        """One step of ``count`` tokens; a cold prefill need not be judged, as other suites do nothing else."""
        prompt = self.prompts[sequence]
        part = slice(prompt.held, prompt.held + count)
        segment = TokenSegment(sequence, prompt.ids[part], prompt.x[part].clone())
        result: LayerResult = self.session.step([segment], mode=mode)
        prompt.held += count
        positions = torch.arange(part.start, part.stop, device=self.device)
        given = [None if rows is None else rows.clone() for rows in (result.o, result.out, result.q, result.selected)]
        o, out, q, selected = given
        assert o is not None and out is not None
        if not judge:
            return
        rows = Rows(positions, o, out, q, selected)
        judge_rows(self.subject, self.spec, self.session, sequence, prompt.x[: prompt.held], rows)

    def slots(self, sequence: int) -> list[int]:
        """Slots of its compressed entries; [] in a layer that has none."""
        if not self.case.ratio:
            return []
        found = self.session.compressed_slots(sequence)
        wanted = self.prompts[sequence].held // self.case.ratio
        if not isinstance(found, Tensor) or found.is_floating_point() or found.shape != (wanted,):
            raise ContractViolation(f"compressed_slots returned no integer tensor of {wanted} slots.")
        listed: list[int] = found.tolist()
        return listed

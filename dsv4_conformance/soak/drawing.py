"""From a seed and a number to one fresh case of one suite function, the same in every process. Torch-free.

Surfaces get shares of the cases, so that a slow one (a layer) does not take the time of a hundred fast ones; within a
surface all suite functions are drawn alike, but for the plain comparison with the oracle, which comes more often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from dsv4_conformance.cases.case import AttentionCase, Case, FormatCase, PaddedCase, RankCase
from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.identity import case_id
from dsv4_conformance.cases.plan import PlannedCase
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.cli.suite_functions import SuiteFunction
from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import AttentionConvention, Convention, FormatConvention
from dsv4_conformance.suite import ENDPOINT

SHARES: Mapping[str, int] = {
    "SparseDecode": 40,
    "SparsePrefill": 26,
    "AttentionLayer": 4,
    "PrefixReuse": 3,
    "DecodePlan": 2,
}
"""Cases out of SHARES' sum plus OTHERS per further surface that an implementation offers."""
OTHERS = 6
ORACLE = "core"
ORACLE_WEIGHT: Mapping[Size, int] = {"laptop": 8, "gpu": 40}
"""The family of the plain comparison with the oracle, and how many other functions it weighs as much as: one call is
what it takes, and the shapes of a GPU are where it shows most."""
PLACES = 48
"""How far into a family's stream a case is drawn: past the curated ones of most."""
REDRAWS = 200


@dataclass(frozen=True)
class Kind:
    """One suite function on one surface."""

    function: SuiteFunction
    surface: str


@dataclass(frozen=True)
class Drawn:
    """Case ``number`` of a soak."""

    number: int
    kind: Kind
    planned: PlannedCase


class Deck:
    """The kinds that an implementation offers, and the cases that ``seed`` draws from them.

    ``only``: surfaces to draw from, () = all that are offered. Raises BadInput if nothing is left.
    """

    def __init__(
        self,
        functions: Sequence[SuiteFunction],
        offered: Mapping[str, Convention],
        size: Size,
        seed: int,
        only: Sequence[str] = (),
    ) -> None:
        unknown = [surface for surface in only if surface not in offered]
        if unknown:
            raise BadInput(f"The implementation does not offer {unknown[0]}; it offers {', '.join(offered)}.")
        self._offered, self._size, self._seed = offered, size, seed
        self._kinds: dict[str, list[Kind]] = {}
        for surface in offered:
            mine = [Kind(f, surface) for f in functions if surface in f.spec.surfaces and not _apart(f)]
            if mine and (not only or surface in only):
                weighted = [ORACLE_WEIGHT[size] if kind.function.spec.family == ORACLE else 1 for kind in mine]
                self._kinds[surface] = [k for k, times in zip(mine, weighted, strict=True) for _ in range(times)]
        if not self._kinds:
            raise BadInput("No suite tests any surface that the implementation offers, so there is nothing to soak.")
        self._surfaces = [surface for surface in self._kinds for _ in range(SHARES.get(surface, OTHERS))]

    def draw(self, number: int) -> Drawn:
        """Case ``number``. Cases that the declarations exclude before anything runs are drawn anew, a bounded time."""
        draws = Draws("soak", self._size, self._seed, number)
        kind = draws.pick(tuple(self._kinds[draws.pick(tuple(self._surfaces))]))
        for _ in range(REDRAWS):
            case = self._case(kind, draws)
            if within(case, self._offered[kind.surface]):
                break
        name, requirement = kind.function.name, kind.function.spec.requirement
        return Drawn(number, kind, PlannedCase(case_id(name, requirement, case), requirement, kind.surface, case))

    def _case(self, kind: Kind, draws: Draws) -> Case:
        stream = family(kind.function.spec.family, kind.surface, self._size, draws.integer(2**31))
        found = list(islice(stream, draws.integer(PLACES) + 1))
        if not found:
            found = list(islice(family(kind.function.spec.family, kind.surface, "laptop", draws.integer(2**31)), 1))
        return found[-1]


def _apart(function: SuiteFunction) -> bool:
    """Tests of a server, and of how long something takes, which a busy machine changes: nothing to soak."""
    return ENDPOINT in function.spec.surfaces or "performance" in function.path.parts


def within(case: Case, convention: Convention) -> bool:
    """Whether head counts and page sizes of a case lie within the declaration, as far as the case tells."""
    if isinstance(case, RankCase | PaddedCase):
        case = case.attention
    pages: list[int] = []
    if isinstance(case, AttentionCase) and isinstance(convention, AttentionConvention):
        if convention.h_q is not None and case.h_q not in convention.h_q:
            return False
        if case.surface != "SparsePrefill":
            pages = [scope.page_size for scope in (case.window, case.extra) if scope is not None]
    elif isinstance(case, FormatCase) and isinstance(convention, FormatConvention):
        pages = [case.page_size]
    sizes = getattr(convention, "page_sizes", None)
    return sizes is None or all(page in sizes for page in pages)

"""Each wrong workspace, chunk cache and metadata is rejected, by the requirement that is there for its mistake."""

import pytest

from dsv4_conformance.implementations.api import Implementation
from tests.miniatures import Miniature, state, state_metadata
from tests.suites.runs import first_failure, functions

# Adapter -> the requirements that must reject it, each alone.
WRONG = {
    "GrowthIgnored": ("INV-72",),
    "GrowsByDoubling": ("INV-72",),
    "BufferPerCall": ("INV-72",),
    "NoRowsAreFine": ("INV-72",),
    "WorkspaceInFloat16": ("INV-72",),
    "ExtentFromCapacity": ("INV-74",),
    "DeclaresRaggedAndIsRectangular": ("INV-74",),
    "TakesShortTables": ("INV-74",),
    "C128FromTheFirstRow": ("INV-77", "INV-73"),
    "RebuildsForEveryLayer": ("INV-76",),
    "ChecksSpareColumns": ("INV-75",),
    "HoleNamesTheRowBefore": ("INV-73",),
    "FirstSelectionForAllLayers": ("INV-73",),
    "TailsAreNotFilled": ("INV-73",),
    "WindowStartsOneTooLate": ("INV-73", "INV-71"),
    "EveryRequestStartsAtRow0": ("INV-73",),
    "RowsOfNobodyRepeatTheLast": ("INV-81",),
    "RowsOfNobodyHaveNegativeLengths": ("INV-81",),
    "ChunkCacheKeptAfterCopy": ("INV-78",),
    "ChunkCacheKeptAfterRefresh": ("INV-78",),
    "WindowListsReferencedByFullGraphs": ("INV-79",),
    "LengthsReferencedByBrokenGraphs": ("INV-79",),
    "SaysCopiedAndReferences": ("INV-79",),
    "SelectionOverwrittenByRefresh": ("INV-79",),
    "SelectionReplacedByRefresh": ("INV-79",),
    "SelectionDeclaredReferenced": ("INV-79",),
    "EntryListForgotten": ("INV-78",),
    "FieldWithoutAClass": ("INV-79",),
    "EntriesPackedAtTheLiveWidth": ("INV-78",),
    "EntryListAsWideAsTheStep": ("INV-79",),
    "PaddingHasNegativeLengths": ("INV-81",),
    "PaddingNamesSlot0": ("INV-81",),
    "WindowOf127": ("INV-78",),
    "EntriesOneTokenLate": ("INV-78",),
}
BOTH = vars(state) | vars(state_metadata)
RIGHT = {"Miniature", "Workspaced", "Chunked", "Stepped"}
REQUIREMENTS = ["INV-71", "INV-72", "INV-73", "INV-74", "INV-75", "INV-76", "INV-77", "INV-78", "INV-79", "INV-81"]


def adapter(name: str) -> type[Implementation]:
    found: type[Implementation] = BOTH[name]
    return found


# Kills: any check taken out of the suites, a case taken out that alone shows a mistake, in the smaller profile.
@pytest.mark.parametrize(("name", "requirement"), [(name, r) for name, rs in WRONG.items() for r in rs])
def test_wrong_state_is_rejected(name: str, requirement: str) -> None:
    assert first_failure(adapter(name), requirement, "kill") is not None


# Kills: capacity and sizes judged by checks of other requirements: the answers of this one are right.
@pytest.mark.parametrize("requirement", ["INV-71", "INV-73", "INV-76", "INV-77", "INV-81"])
@pytest.mark.parametrize("name", ["ExtentFromCapacity", "DeclaresRaggedAndIsRectangular"])
def test_wasteful_gathers_give_right_rows(name: str, requirement: str) -> None:
    assert first_failure(adapter(name), requirement, "kill") is None


# Kills: a wrong adapter that nobody runs, a requirement that nothing is rejected by.
def test_every_adapter_is_named_and_every_requirement_rejects_one() -> None:
    adapters = {n for n, v in BOTH.items() if isinstance(v, type) and issubclass(v, Miniature)}
    assert adapters - RIGHT == set(WRONG)
    assert {r for rs in WRONG.values() for r in rs} == set(REQUIREMENTS)
    surfaces = {"SparsePrefillWorkspace", "SparsePrefillChunkCache", "GraphMetadata"}
    assert {f.spec.requirement for f in functions() if surfaces & set(f.spec.surfaces)} >= set(REQUIREMENTS)


# Kills: sentences without the place, the number or the promise that was broken.
@pytest.mark.parametrize(
    ("name", "requirement", "said"),
    [
        ("GrowthIgnored", "INV-72", "returned (3, 1, 512) torch.bfloat16; the surface promises (7, 1, 512)"),
        ("GrowsByDoubling", "INV-72", "a buffer of 6144 bytes was made for 3 rows; exactly 3072 are right"),
        ("NoRowsAreFine", "INV-72", "open_workspace().get took an input that it must refuse"),
        ("ExtentFromCapacity", "INV-74", "524288 compressed rows are gathered for requests of (260, 260) tokens"),
        ("DeclaresRaggedAndIsRectangular", "INV-74", "is declared ragged, which is 0 rows, and has 2"),
        ("TakesShortTables", "INV-74", "ensure_c4 took an input that it must refuse"),
        ("C128FromTheFirstRow", "INV-77", "slots [-1, -1] are gathered for request 0, whose entries are in"),
        ("ChecksSpareColumns", "INV-75", "ensure_c4 raised ValueError: negative page"),
        ("TailsAreNotFilled", "INV-73", "holds something else than -1 in its tail"),
        ("RowsOfNobodyHaveNegativeLengths", "INV-81", "rows of nobody have lengths [-2, -2] at ratio 0"),
        ("ChunkCacheKeptAfterRefresh", "INV-78", "the chunk cache of the step before survives refresh_"),
        ("WindowListsReferencedByFullGraphs", "INV-79", "copy_ moved a list that a captured kernel reads"),
        ("LengthsReferencedByBrokenGraphs", "INV-79", "seq_lens is declared referenced at refresh"),
        ("SaysCopiedAndReferences", "INV-79", "c4_topk_lengths_raw at copy is declared copied and lies at another"),
        ("SelectionOverwrittenByRefresh", "INV-79", "c4_sparse_raw_indices at refresh is declared kept and holds"),
        ("SelectionDeclaredReferenced", "INV-79", "referenced at refresh, and the captured indexer has"),
        ("FieldWithoutAClass", "INV-79", "classes('copy') and fields() differ in state_rows"),
        ("EntryListAsWideAsTheStep", "INV-79", "c128_page_indices is"),
        ("PaddingHasNegativeLengths", "INV-81", "window length -2 where 0 is right"),
    ],
)
def test_the_sentence_says_what_is_wrong(name: str, requirement: str, said: str) -> None:
    failure = first_failure(adapter(name), requirement, "kill")
    assert failure is not None and said in failure, failure
    assert "\n" not in failure

"""Cases of the sparse-prefill machinery and of graph metadata: row counts, batches, steps. Torch-free."""

from dataclasses import dataclass

from dsv4_conformance.cases.case import _Described


def _listed(numbers: tuple[int, ...]) -> str:
    """Numbers for a label, the rest told by their count."""
    shown = ".".join(map(str, numbers[:6]))
    return shown if len(numbers) <= 6 else f"{shown}.and{len(numbers) - 6}"


@dataclass(frozen=True)
class WorkspaceCase(_Described):
    """Row counts asked of one workspace, one after the other."""

    surface: str
    rows: tuple[int, ...]
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"rows{_listed(self.rows)}"


@dataclass(frozen=True)
class ExtentCase(_Described):
    """``requests`` requests of ``seq_len`` tokens, one of them new, under a page table of ``pages`` pages: metadata
    captured for the longest context, and a batch that is short."""

    surface: str
    seq_len: int
    requests: int = 2
    pages: int = 4096
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"s{self.seq_len}x{self.requests}-pages{self.pages}"


@dataclass(frozen=True)
class ChunkCase(_Described):
    """An extend batch: tokens that each request holds, new ones among them, ``padded_rows`` query rows of nobody, and
    ``topk`` entries that the indexer selects at ratio 4, with ``holes`` among them or not. The page table has
    ``spare_pages`` more columns than the longest request needs."""

    surface: str
    seq_lens: tuple[int, ...]
    extend_lens: tuple[int, ...]
    padded_rows: int = 0
    topk: int = 64
    holes: bool = False
    spare_pages: int = 1
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        holes = "-holes" if self.holes else ""
        return f"s{_listed(self.seq_lens)}-e{_listed(self.extend_lens)}-pad{self.padded_rows}-k{self.topk}{holes}"


@dataclass(frozen=True)
class MetadataCase(_Described):
    """Two steps of one captured shape: ``before`` and ``after`` hold the tokens of each row, 0 = a row of nobody.

    ``pages``: columns of the page table, 256 tokens each.
    """

    surface: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    pages: int = 4
    index_topk: int = 64
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"from{_listed(self.before)}-to{_listed(self.after)}-pages{self.pages}"

"""Which pages of a pool are in use, and by how many sequences (spec §9.1, §9.4)."""

from __future__ import annotations

from dsv4_conformance.errors import BadInput

DUMMY_PAGE = 0
"""Never handed out: what has nothing to write may address its slot 0 (spec §9.1)."""


class PageAllocator:
    """Pages 1 to ``num_pages - 1``, each free or held by one or more sequences that share a prefix.

    What was freed last is handed out first, so that a reader of stale bytes meets them soon. Raises BadInput if there
    is no page beside the dummy.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise BadInput(f"num_pages is {num_pages}; page 0 is the dummy page, so give at least 2.")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, DUMMY_PAGE, -1))
        self._holders: dict[int, int] = {}

    def take(self) -> int:
        """A free page, held once from now on; its bytes are whatever stood there. Raises BadInput if none is free."""
        if not self._free:
            raise BadInput(
                f"all {self.num_pages - 1} pages are in use; release a sequence, or open the pool with more pages."
            )
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, page: int) -> None:
        """Hold a live page once more. Raises BadInput for a page that nobody holds."""
        self._check(page)
        self._holders[page] += 1

    def give_back(self, page: int) -> None:
        """Hold a live page once less; without holders it is free. Raises BadInput for a page that nobody holds."""
        self._check(page)
        self._holders[page] -= 1
        if not self._holders[page]:
            del self._holders[page]
            self._free.append(page)

    def live(self) -> set[int]:
        """Pages that somebody holds."""
        return set(self._holders)

    def _check(self, page: int) -> None:
        if page not in self._holders:
            raise BadInput(f"page {page} is held by no sequence; pass a page that take() returned.")

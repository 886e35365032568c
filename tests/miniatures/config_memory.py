"""Engines that reserve too little or too much for a model, one mistake each, as public engines did."""

from __future__ import annotations

from typing import Any

from dsv4_conformance.faults import config as faults
from dsv4_conformance.implementations.state_api import ServerOptions
from tests.miniatures.base import Miniature
from tests.miniatures.config import Configured


class C128PageOf256(Configured):
    """Views the C128 pool with the page of full tokens."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["pool_page_sizes"] = values["pool_page_sizes"] | {"c128": 256}


class PagesWithoutTheirTail(Configured):
    """Counts 584 bytes per entry and no rounding."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["page_bytes"] = values["page_bytes"] | {"window": 584 * 256, "c4": 584 * 64, "c128": 584 * 2}


class OneDraftLayer(Miniature, faults.OneDraftLayer):
    """Counts one draft layer, whatever the config lists."""


class CacheSharedOutOverRanks(Configured):
    """Divides cache bytes by tp, as if keys had heads."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        cache = values["cache_bytes_per_request"]
        values["cache_bytes_per_request"] = {pool: size // options.tp for pool, size in cache.items()}


class StateOfCompleteGroupsForgotten(Configured):
    """Keeps room for the C4 compressors' state only."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["state_bytes_per_request"] = list(values["compress_ratios"]).count(4) * 40 * 640


class WorkspaceOfC128Alone(Configured):
    """Divides live lengths by 128 in every layer."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["workspace_bytes"] = options.max_requests * values["context"] // 128 * 1024


class WorkspaceOfCapacity(Configured):
    """Sizes the gather by a page table for a million tokens."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["workspace_bytes"] = options.max_requests * 2**18 * 1024


class WindowGrowsWithContext(Configured):
    """Keeps the window pages of the whole context."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        window = len(values["compress_ratios"]) * -(-values["context"] // 256) * 149760
        values["cache_bytes_per_request"] = values["cache_bytes_per_request"] | {"window": window}


class StateGrowsWithContext(Configured):
    """Keeps compressor state for every page."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["state_bytes_per_request"] = values["state_bytes_per_request"] * -(-values["context"] // 256)

"""Settings that an engine derives from a model's config and a deployment's options (spec §1, §3, §12, §15-§17)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import ServerOptions, Settings
from dsv4_conformance.mla import config_memory


class Configured(Builtin):
    """The built-in configuration, right; subclasses change what goes in or the settings that come out."""

    touches: ClassVar[tuple[str, ...]] = ("EngineConfig",)

    def given(self, config: dict[str, Any], options: ServerOptions) -> tuple[dict[str, Any], ServerOptions]:
        """What is really resolved."""
        return config, options

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """Change ``values`` in place."""

    def resolve_config(
        self, config: Mapping[str, Any], options: ServerOptions, environment: Mapping[str, str]
    ) -> Settings:
        """EngineConfig, changed."""
        found = super().resolve_config(*self.given(dict(config), options), environment)
        values = dict(found.values)
        self.told(values, config, options)
        return Settings(values, found.warnings)


@fault("S05", breaks="INV-118")
class PagedCallsOfAnyLength(Configured):
    """There is no threshold: a paged call takes all rows of a batch, more than its schedule can be planned for."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """Rows of the largest chunk."""
        values["max_paged_rows"] = 1 << 20


@fault("S06", breaks="INV-82")
class ContextParallelismNotAsked(Configured):
    """Sparse prefill goes by the forward mode and the rows alone, and stays on under context parallelism."""

    def given(self, config: dict[str, Any], options: ServerOptions) -> tuple[dict[str, Any], ServerOptions]:
        """As without context parallelism."""
        return config, replace(options, tp=options.tp // options.cp, cp=1)


@fault("S30", breaks="INV-121")
class StateSizedByTheWindow(Configured):
    """State rings are sized per window of 128 tokens and addressed per page of 256: twice the bytes."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """Twice what is addressed."""
        values["state_bytes_per_request"] *= 2


@fault("S39", breaks="INV-121")
class ScoresOfEveryHead(Configured):
    """Index scores are kept for each head until they are joined."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """Times the index heads."""
        values["index_score_bytes_per_row"] *= config.get("index_n_heads", 64)


class _TopkIs(Configured):
    topk: ClassVar[int]

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """The constant."""
        values["index_topk"] = self.topk


@fault("S42", breaks="INV-114")
class BridgeFor1024(_TopkIs):
    """A bridge sizes its metadata for the 1024 selected entries of Pro, whatever the model selects."""

    topk = 1024


@fault("T02", breaks="INV-114")
class DefaultBeatsTheCheckpoint(_TopkIs):
    """`default or checkpoint` takes the default of 512, which is never empty."""

    topk = 512


@fault("S52", breaks="INV-121")
class WindowIsNeverEvicted(Configured):
    """Window slots are not given back in decode, so they are those of the whole context."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """Pages of all tokens."""
        pages = config_memory.pages(values["context"])
        window = len(values["compress_ratios"]) * pages * config_memory.PAGE_BYTES["window"]
        values["cache_bytes_per_request"] = values["cache_bytes_per_request"] | {"window": window}


@fault("S53", breaks="INV-120")
class OneDraftLayer(Configured):
    """One draft layer is accounted for, however many the config lists."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """At most one."""
        values["draft_layers"] = min(values["draft_layers"], 1)


@fault("S72", breaks="INV-111")
class RatioOneIsARatio(Configured):
    """Layers compress if their ratio is above 0, but some checkpoints write 1 for uncompressed ones."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """Keep the config's ones."""
        given = config.get("compress_ratios")
        if isinstance(given, list) and 1 in given:
            values["compress_ratios"] = tuple(given)
            values["yarn"] = tuple(ratio > 0 for ratio in given)


@fault("V19", breaks="INV-119")
class C128PageOfFullTokens(Configured):
    """The C128 pool is viewed with the page of full tokens, 128 times its storage."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """256 entries."""
        values["pool_page_sizes"] = values["pool_page_sizes"] | {"c128": 256}


@fault("V20b", breaks="INV-119")
class IndexPageOfTwo(Configured):
    """The indexer's page is derived with ratio 128, which gives 2 keys: no logits kernel is built for that."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """2 keys."""
        values["pool_page_sizes"] = values["pool_page_sizes"] | {"index": 2}


@fault("V23", breaks="INV-113")
class DraftLayersWithYarn(Configured):
    """Entries behind the main layers are ignored, and draft layers are made as compressed ones are."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """YaRN and its base in draft layers."""
        main = config["num_hidden_layers"]
        base = max(values["rope_bases"])
        values["yarn"] = tuple(yarn or layer >= main for layer, yarn in enumerate(values["yarn"]))
        values["rope_bases"] = tuple(base if n >= main else own for n, own in enumerate(values["rope_bases"]))


@fault("V24", breaks="INV-113")
class YarnInWindowLayers(Configured):
    """One rope object with YaRN serves all layers."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """YaRN everywhere."""
        values["yarn"] = (True,) * len(values["yarn"])


@fault("V63", breaks="INV-119")
class SmallestPageOfAnyGroup(Configured):
    """The page size in effect is the smallest block of any cache group, which is compressor state's 4."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """4 tokens."""
        values["page_size"] = 4


@fault("T09b", breaks="INV-120")
class LastPageRoundedDown(Configured):
    """Pools hold the whole pages below the longest request, and not the page that it ends in."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """Without the last page where it is not full."""
        full, all_pages = values["context"] // 256, config_memory.pages(values["context"])
        cache = values["cache_bytes_per_request"]
        values["cache_bytes_per_request"] = {
            pool: size if pool == "window" else size // all_pages * full for pool, size in cache.items()
        }


@fault("O27b", breaks="INV-112")
class OneBaseForAllLayers(Configured):
    """Every layer rotates with rope_theta, compressed ones too."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """The smaller base."""
        values["rope_bases"] = (min(values["rope_bases"]),) * len(values["rope_bases"])


@fault("O57", breaks="INV-111")
class DraftLayersLikeLayer1(Configured):
    """Draft layers take the settings of layer 1, which is uncompressed in Flash and not in Pro."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """The ratio of layer 1."""
        ratios, main = values["compress_ratios"], config["num_hidden_layers"]
        values["compress_ratios"] = (*ratios[:main], *([ratios[1]] * (len(ratios) - main)))


@fault("O65b", breaks="INV-120")
class NoRoomForTheChunkInFlight(Configured):
    """The window pool holds a window and the current page, and not the chunk that is being prefilled."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """As in decode."""
        values["window_bytes_in_prefill"] = values["cache_bytes_per_request"]["window"]

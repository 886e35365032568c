"""Engines that read a config or their options wrongly, one mistake each, as public engines did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.faults import config as faults
from dsv4_conformance.implementations.state_api import ServerOptions, Settings
from tests.miniatures.base import Miniature


class Configured(Miniature):
    """The built-in configuration, right; subclasses change what goes in or the settings that come out."""

    def given(
        self, config: dict[str, Any], options: ServerOptions, environment: dict[str, str]
    ) -> tuple[dict[str, Any], ServerOptions, dict[str, str]]:
        """What is really resolved."""
        return config, options, environment

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        """Change ``values`` in place."""

    def spoken(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        """The warnings that are really given."""
        return warnings

    def resolve_config(
        self, config: Mapping[str, Any], options: ServerOptions, environment: Mapping[str, str]
    ) -> Settings:
        found = super().resolve_config(*self.given(dict(config), options, dict(environment)))
        values = dict(found.values)
        self.told(values, config, options)
        return Settings(values, self.spoken(found.warnings))


class ContextParallelismLeavesItOn(Configured):
    """Looks at the user's switch alone."""

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        return config, replace(options, tp=options.tp // options.cp, cp=1), environment


class ContextParallelismSwitchesOffSilently(Configured):
    """Switches sparse prefill off without a word."""

    def spoken(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        return ()


class ContextParallelismWarnsOnEveryRank(Configured):
    """Says it twice."""

    def spoken(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        return warnings * 2


class ForcedOnWins(Configured):
    """Lets an explicit switch win over context parallelism."""

    forced = False

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        self.forced = environment.get("DSV4_SPARSE_PREFILL", "").lower() in ("1", "true", "yes", "y")
        return config, options, environment

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["sparse_prefill"] = values["sparse_prefill"] or self.forced


class OptOutIgnored(Configured):
    """Is on by default and stays so."""

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        return config, options, {}


class AnyWordSwitchesOn(Configured):
    """Takes every text but the empty one for true."""

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        return config, options, {name: "1" for name in environment}


class OptOutInCapitalsIgnored(Configured):
    """Compares the switch with small letters only."""

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        words = {name: word if word.islower() or word == "0" else "1" for name, word in environment.items()}
        return config, options, words


class OffByDefault(Configured):
    """Wants the switch set."""

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        return config, options, {"DSV4_SPARSE_PREFILL": "0"} | environment


class TpForAttentionTp(Configured):
    """Shares out heads over all ranks under DP attention."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        values["attention_tp"] = options.tp
        values["local_heads"] = config["num_attention_heads"] // options.tp


class HeadsOfAllRanks(Configured):
    """Counts the model's heads on every rank."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        values["local_heads"] = config["num_attention_heads"]


class YarnOnWindowLayers(Configured):
    """Has one rope object for the model."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["yarn"] = [True] * len(values["yarn"])


class YarnWithDefaultFactor(Configured):
    """Scales by the 40 of the release code's defaults."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["yarn_parameters"] = values["yarn_parameters"] | {"factor": 40.0}


class YarnWithTheReleasesFactor(Configured):
    """Scales by 16 whatever the config says."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["yarn_parameters"] = values["yarn_parameters"] | {"factor": 16.0}


class DefaultCompressTheta(Configured):
    """Has compressed layers on the 40000 of the code's defaults."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["rope_bases"] = [40000.0 if ratio else base for base, ratio in _bases(values)]


class ReleasedThetaForAll(Configured):
    """Has compressed layers on 160000 whatever the config says."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["rope_bases"] = [160000.0 if ratio else base for base, ratio in _bases(values)]


class OneThetaForAll(Configured):
    """Has every layer on rope_theta."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["rope_bases"] = [10000.0] * len(values["rope_bases"])


class FillsInMissingTheta(Configured):
    """Puts a default where the config has no compress_rope_theta."""

    def given(self, config: dict[str, Any], options: ServerOptions, environment: Any) -> Any:
        if "rope_scaling" in config:
            config.setdefault("compress_rope_theta", 40000)
        return config, options, environment


class DraftLayerTakesTheLastRatio(Configured):
    """Ignores entries beyond num_hidden_layers."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        ratios, main = list(values["compress_ratios"]), config["num_hidden_layers"]
        values["compress_ratios"] = ratios[:main] + [ratios[main - 1]] * (len(ratios) - main)


class RatioPatternFromTheIndex(Configured):
    """Derives ratios from even and odd layer numbers, as Flash has them."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        main, every = config["num_hidden_layers"], len(values["compress_ratios"])
        pattern = [0, 0, *((4, 128)[layer % 2] for layer in range(2, main))]
        values["compress_ratios"] = pattern + [0] * (every - main)


class TopKOfPro(Configured):
    """Selects 1024 whatever the config says."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["index_topk"] = 1024


class WindowOf256(Configured):
    """Takes the page size for the window."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["sliding_window"] = 256


class YarnInTheScale(Configured):
    """Multiplies the softmax scale by YaRN's magnitude factor, as DeepSeek-V3 does."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["softmax_scale"] = values["softmax_scale"] * 1.2772588722**2


class PageSize64Accepted(Configured):
    """Takes any page size but 0 and hands it on."""

    size = 256

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        self.size = options.page_size
        return config, replace(options, page_size=256 if self.size else 0), environment

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["page_size"] = self.size


class PageSizeReplacedSilently(Configured):
    """Puts 256 for any page size but 0 without a word."""

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        return config, replace(options, page_size=256 if options.page_size else 0), environment


class SplitsOutputGroups(Configured):
    """Asks only whether tp divides the heads."""

    def given(self, config: dict[str, Any], options: ServerOptions, environment: Any) -> Any:
        return config | {"o_groups": config["num_attention_heads"]}, options, environment


class ClampsTheContext(Configured):
    """Cuts a context that the model does not have."""

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        return config, replace(options, context=min(options.context, config["max_position_embeddings"])), environment


class RefusesWithoutAName(Configured):
    """Says no more than that it cannot."""

    def resolve_config(self, *arguments: Any) -> Settings:
        try:
            return super().resolve_config(*arguments)
        except BadInput:
            raise BadInput("This is not supported; change it.") from None


class PagedCallsOfAnyLength(Miniature, faults.PagedCallsOfAnyLength):
    """Has no limit on query rows."""


class RopeOfTheFirstModel(Configured):
    """Keeps the rope bases of the model it has seen last, and gives them to the next."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._kept: dict[str, Any] = {}

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        mine = values["rope_bases"]
        values["rope_bases"] = self._kept.get("rope_bases", mine)
        self._kept["rope_bases"] = mine


class PopsTheRopeParameters(Configured):
    """Takes fields out of the config that it was given."""

    def resolve_config(self, config: Any, *arguments: Any) -> Settings:
        found = super().resolve_config(config, *arguments)
        config.pop("rope_scaling", None)
        config.pop("rope_parameters", None)
        return found


class TellsNoRatios(Configured):
    """Leaves out a required setting."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        del values["compress_ratios"]


def _bases(values: Mapping[str, Any]) -> list[tuple[float, int]]:
    return list(zip(values["rope_bases"], values["compress_ratios"], strict=True))

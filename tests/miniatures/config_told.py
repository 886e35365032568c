"""Engines that pad, warn or refuse in a wrong way, one mistake each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.state_api import ServerOptions, Settings
from tests.miniatures.config import Configured


class PadsToAllOnFlashMla(Configured):
    """Calls FlashMLA with all heads of the model."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        if options.device in ("sm90", "sm100"):
            values["padded_heads"] = config["num_attention_heads"]


class PadsToAllElsewhere(Configured):
    """Calls other kernels than FlashMLA's with all heads of the model."""

    def told(self, values: dict[str, Any], config: Mapping[str, Any], options: ServerOptions) -> None:
        if options.device not in ("sm90", "sm100"):
            values["padded_heads"] = config["num_attention_heads"]


class TellsAnotherPageSize(Configured):
    """Hands on the smallest page of any group of caches."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["page_size"] = 4


class ContextOfTheOption(Configured):
    """Has room for no token where the option leaves the context to the model."""

    def told(self, values: dict[str, Any], config: Any, options: ServerOptions) -> None:
        values["context"] = options.context


class Warns(Configured):
    """Changes warnings; ``off`` and ``cp`` tell what they are about."""

    off, cp = False, 1

    def given(self, config: Any, options: ServerOptions, environment: Any) -> Any:
        self.off, self.cp = environment.get("DSV4_SPARSE_PREFILL", "").lower() in ("0", "no"), options.cp
        return config, options, environment


class WarnsOfWhatIsOffAlready(Warns):
    """Says twice that it switches off what the user switched off."""

    def spoken(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        return ("Sparse prefill is off under context parallelism.",) * 2 if self.off and self.cp > 1 else warnings


class WarnsWithoutAReason(Warns):
    """Says that it is off, not why."""

    def spoken(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        return ("Sparse prefill is off.",) if warnings else ()


class WarnsOfContextParallelismThatIsOff(Warns):
    """Warns on every start."""

    def spoken(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        return warnings or ("Mind context parallelism.",)


class RefusesAtLength(Configured):
    """Prints the config with its refusal."""

    def resolve_config(self, *arguments: Any) -> Settings:
        try:
            return super().resolve_config(*arguments)
        except BadInput as error:
            raise BadInput(f"{error}\n{arguments[0]}") from None


class RefusesOtherPagesWithoutAName(Configured):
    """Has an assertion without a text for the page size."""

    def resolve_config(self, config: Any, options: ServerOptions, environment: Any) -> Settings:
        assert options.page_size in (0, 256)
        return super().resolve_config(config, replace(options, page_size=options.page_size), environment)


class WritesToTheEnvironment(Configured):
    """Keeps its decision in the environment."""

    def resolve_config(self, config: Any, options: ServerOptions, environment: Any) -> Settings:
        found = super().resolve_config(config, options, environment)
        environment["DSV4_SPARSE_PREFILL"] = "1"
        return found

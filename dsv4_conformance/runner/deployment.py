"""What a suite asks an engine's configuration: settings by name, or the sentence it refuses a deployment with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsv4_conformance.cases.config_case import ConfigCase, config_of, environment_of, options_of
from dsv4_conformance.errors import BadInput, ConformanceFailure, ContractViolation, NotApplicable
from dsv4_conformance.implementations.api import ConfigConvention
from dsv4_conformance.implementations.state_api import Settings
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.engine_settings import REQUIRED


class Told:
    """Settings of one deployment. ``who`` names the engine in sentences."""

    def __init__(self, settings: Settings, who: str, declared: ConfigConvention) -> None:
        self.warnings = tuple(settings.warnings)
        self._values, self._who, self._declared = settings.values, who, declared

    def __getitem__(self, name: str) -> Any:
        """One setting; sequences as lists, so that they compare by content.

        Raises ContractViolation if a required one is missing, NotApplicable if an optional one is, or one that the
        adapter declares not to tell.
        """
        if name not in self._values:
            tells = REQUIRED if self._declared.tells is None else self._declared.tells
            if name in tells:
                raise ContractViolation(f"{self._who} tells no {name}; the surface promises it.")
            raise NotApplicable(f"{self._who} tells no {name}.")
        value = self._values[name]
        return list(value) if isinstance(value, list | tuple) else value

    def pool(self, name: str, pool: str) -> Any:
        """One pool's entry of a setting; ContractViolation if it is missing."""
        value = self[name]
        if not isinstance(value, Mapping) or pool not in value:
            raise ContractViolation(f"{self._who} tells {name} without pool {pool!r}.")
        return value[pool]


def attempt(subject: Subject, case: ConfigCase, **options: Any) -> Told | str:
    """Settings of a deployment with some server ``options`` replaced, or the sentence that refuses it."""
    who = f"{subject.implementation.identity.name}.resolve_config"
    try:
        settings = subject.ask(
            "resolve_config", config_of(case), replace(options_of(case), **options), environment_of(case)
        )
    except ConformanceFailure as failure:
        if isinstance(failure.__cause__, BadInput | ValueError | AssertionError):
            return str(failure.__cause__)
        raise
    if not isinstance(settings, Settings):
        raise ContractViolation(f"{who} returned {type(settings).__name__}; the surface promises Settings.")
    return Told(settings, who, convention(subject))


def convention(subject: Subject) -> ConfigConvention:
    """The adapter's declaration for EngineConfig."""
    declared = subject.implementation.surfaces["EngineConfig"]
    return declared if isinstance(declared, ConfigConvention) else ConfigConvention()


def resolved(subject: Subject, case: ConfigCase) -> Told:
    """Settings of a sound deployment.

    Raises NotApplicable if the engine refuses its device by name, or declares that cp and dp exclude each other;
    ConformanceFailure if it refuses anything else.
    """
    if case.cp > 1 and case.dp > 1 and not convention(subject).cp_beside_dp:
        raise NotApplicable("the adapter declares that context parallelism excludes attention replicas.")
    found = attempt(subject, case)
    if isinstance(found, Told):
        return found
    if case.device in found:
        raise NotApplicable(f"the engine does not serve {case.device}: {found}")
    raise ConformanceFailure(f"{case.label()} is refused, and nothing is wrong with it: {found}")

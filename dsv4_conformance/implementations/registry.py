"""From a name to an adapter class whose declarations hold, and from a request to a device; imports no torch."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from importlib import metadata

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import gpus
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.texts import summary_of

GROUP = "dsv4_conformance.implementations"
"""Entry-point group in which distributions announce adapters."""

FAULT = "fault:"
"""What the names of public bugs re-created on the built-in implementation begin with: ``fault:S01``."""

BUILT_IN = {
    "builtin": "dsv4_conformance.implementations.builtin:Builtin",
    "flash_mla": "dsv4_conformance.implementations.flash_mla:FlashMLA",
    "sglang": "dsv4_conformance.implementations.sglang:SGLang",
    "sglang_flashmla": "dsv4_conformance.implementations.sglang_flashmla:SGLangFlashMLA",
    "sglang_unified_decode": "dsv4_conformance.implementations.sglang_unified:UnifiedDecode",
    "sglang_unified_prefill": "dsv4_conformance.implementations.sglang_unified:UnifiedPrefill",
    "transformers": "dsv4_conformance.implementations.transformers:Transformers",
    "vllm_cpu": "dsv4_conformance.implementations.vllm_cpu:VllmCpu",
    "vllm_flashmla": "dsv4_conformance.implementations.vllm_flashmla:VllmFlashMLA",
}


def load(name: str) -> type[Implementation]:
    """The adapter class called ``name``: a shipped name, an entry point's name, ``fault:ID``, or ``module:attr``.

    ``module`` may lie in the current working directory. Raises BadInput, in one sentence, if nothing has that name, if
    its import fails, or if what it declares is wrong.
    """
    if name.startswith(FAULT):
        return _resolve(name, f"dsv4_conformance.faults:{name.removeprefix(FAULT)}")
    if ":" in name:
        return _resolve(name, name)
    known = _announced()
    if name not in known:
        raise BadInput(
            f"no implementation is called {name!r}{_nearest(name, known)}; known are {', '.join(sorted(known))}, and "
            "any class as module:attr."
        )
    return _resolve(name, known[name])


def list_implementations() -> list[tuple[str, type[Implementation] | str]]:
    """Every shipped or announced name, sorted, with its class or the sentence that says why it cannot be used."""
    listed: list[tuple[str, type[Implementation] | str]] = []
    for name in sorted(_announced()):
        try:
            listed.append((name, load(name)))
        except BadInput as error:
            listed.append((name, str(error)))
    return listed


def names() -> list[str]:
    """Every shipped or announced name, sorted; nothing is imported."""
    return sorted(_announced())


def check_device(cls: type[Implementation], requested: str) -> str:
    """The torch device, "cpu" or "cuda", on which ``cls`` runs when ``requested`` is "auto", "cpu" or "cuda".

    "auto" is cuda if the adapter supports it and a GPU is visible, else cpu. Raises BadInput if the adapter does not
    run there, if no GPU is visible, or if a visible GPU has a compute capability that the adapter does not declare.
    """
    name = cls.identity.name
    if requested not in ("auto", "cpu", "cuda"):
        raise BadInput(f"device {requested!r} is unknown; use auto, cpu or cuda.")
    if requested != "auto" and requested not in cls.devices:
        raise BadInput(f"implementation {name!r} does not run on {requested}; use {' or '.join(cls.devices)}.")
    if requested == "cpu" or "cuda" not in cls.devices:
        return "cpu"
    visible = gpus.visible_gpus()
    if not visible and requested == "auto" and "cpu" in cls.devices:
        return "cpu"
    if not visible:
        raise BadInput(
            f"implementation {name!r} needs a GPU here and none is visible; run on a machine with one, or check the "
            "driver and CUDA_VISIBLE_DEVICES."
        )
    _check_capabilities(cls, visible)
    return "cuda"


def _check_capabilities(cls: type[Implementation], visible: Iterable[str]) -> None:
    if not cls.compute_capabilities:
        return
    for uuid in visible:
        found = gpus.compute_capability(uuid)
        if found not in cls.compute_capabilities:
            declared = ", ".join(f"{major}.{minor}" for major, minor in cls.compute_capabilities)
            raise BadInput(
                f"implementation {cls.identity.name!r} declares compute capability {declared}, and {uuid} has "
                f"{found[0]}.{found[1]}; hide that GPU with CUDA_VISIBLE_DEVICES or use another implementation."
            )


def _announced() -> dict[str, str]:
    """Name -> ``module:attr`` of everything that can be loaded by name; shipped names cannot be taken over."""
    return {point.name: f"{point.module}:{point.attr}" for point in metadata.entry_points(group=GROUP)} | BUILT_IN


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _resolve(name: str, target: str) -> type[Implementation]:
    module_name, _, attr = target.partition(":")
    if not module_name or not attr:
        raise BadInput(f"implementation {name!r} is no module:attr; write for example my_adapter:MyKernel.")
    found: object = _import(name, module_name)
    for part in attr.split("."):
        if not hasattr(found, part):
            if getattr(found, "__path__", None) is not None and getattr(found, "__file__", None) is None:
                raise BadInput(
                    f"implementation {name!r} does not exist: {module_name} is a folder and no module; change into it "
                    f"and name a module of it, such as {module_name.rpartition('.')[2]}_adapter:{attr}."
                )
            members = getattr(found, "__dict__", {}).items()
            candidates = [
                key for key, value in members if isinstance(value, type) and issubclass(value, Implementation)
            ]
            raise BadInput(
                f"implementation {name!r} does not exist: {module_name} has no {attr!r}{_nearest(attr, candidates)}; "
                "name the adapter's class after the colon."
            )
        found = getattr(found, part)
    return check_declarations(name, found)


def _import(name: str, module_name: str) -> object:
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise BadInput(
                f"implementation {name!r} cannot be imported: there is no module {error.name!r}, neither installed nor "
                f"in {here}; install it or change directory."
            ) from None
        raise BadInput(
            f"implementation {name!r} cannot be imported: {module_name} raised {summary_of(error)}; repair it."
        ) from None

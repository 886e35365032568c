"""Families of EngineConfig cases: short lists, all of which every profile but smoke runs. Torch-free."""

from collections.abc import Iterator
from typing import Any, get_args

from dsv4_conformance.cases.config_case import CHANGES, FAULTS, ConfigCase, Spelling
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.spec.engine_settings import OFF_WORDS, ON_WORDS

MODELS = ("flash", "pro")

# Any: families.Family is about the older kinds of cases, whose union this module must not be part of.
Cases = Iterator[Any]


def models(surface: str, size: Size, seed: int) -> Cases:
    """Both models in every spelling, and with every constant that a checkpoint could have instead."""
    for spelling in get_args(Spelling):
        for model in MODELS:
            yield ConfigCase(surface, model, spelling, seed=seed)
    for change in CHANGES:
        for model, spelling in zip(MODELS, ("release", "early"), strict=True):
            if change:
                yield ConfigCase(surface, model, spelling, change, seed=seed)  # type: ignore[arg-type]
    yield ConfigCase(surface, "flash", "transformers", "other_rope", seed=seed)
    yield ConfigCase(surface, "pro", "transformers", "other_yarn", seed=seed)


def ranks(surface: str, size: Size, seed: int) -> Cases:
    """Every way to share out heads: tp alone, under DP attention and under context parallelism, on every device."""
    shares = [(8, 8, 1), (8, 1, 1), (8, 2, 1), (8, 4, 1), (1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 2, 2), (8, 1, 8)]
    for model in MODELS:
        for tp, dp, cp in shares:
            yield ConfigCase(surface, model, tp=tp, dp=dp, cp=cp, seed=seed)
    for tp, dp in ((16, 1), (16, 8), (32, 4)):
        yield ConfigCase(surface, "pro", tp=tp, dp=dp, seed=seed)
    for device in ("sm100", "sm120", "hip", "cpu"):
        yield ConfigCase(surface, "pro", tp=8, device=device, seed=seed)
        yield ConfigCase(surface, "flash", device=device, seed=seed)


def switches(surface: str, size: Size, seed: int) -> Cases:
    """The switch unset and in every word, without context parallelism."""
    words = [None, *OFF_WORDS, *ON_WORDS, "False", "NO", "TRUE", "Yes"]
    for number, word in enumerate(words):
        yield ConfigCase(surface, MODELS[number % 2], tp=8, dp=(1, 8)[number % 3 == 2], switch=word, seed=seed)
    yield ConfigCase(surface, "pro", tp=8, device="sm100", switch="0", seed=seed)
    yield ConfigCase(surface, "pro", tp=8, device="sm100", seed=seed)
    yield ConfigCase(surface, "flash", tp=8, drafts=3, switch="false", seed=seed)


def context_parallel(surface: str, size: Size, seed: int) -> Cases:
    """Context parallelism with the switch unset, forced on and off, and the same deployment without it."""
    for number, word in enumerate((None, "1", "true", "0", "no", "YES")):
        yield ConfigCase(surface, MODELS[number % 2], tp=8, cp=(2, 8, 4)[number % 3], switch=word, seed=seed)
    yield ConfigCase(surface, "pro", tp=8, dp=2, cp=2, device="sm100", switch="1", seed=seed)
    yield ConfigCase(surface, "flash", tp=8, cp=2, device="sm120", switch="1", seed=seed)


def sizes(surface: str, size: Size, seed: int) -> Cases:
    """Contexts around pages and groups and up to the model's, several requests, drafts, three draft layers."""
    for number, context in enumerate((4096, 255, 256, 257, 1000, 131072, 1048576, 0)):
        model, requests = MODELS[number % 2], (1, 8, 3)[number % 3]
        yield ConfigCase(surface, model, tp=8, context=context, requests=requests, seed=seed)
    yield ConfigCase(surface, "flash", change="three_drafts", context=8192, drafts=3, seed=seed)
    yield ConfigCase(surface, "pro", change="other_order", context=8192, requests=2, seed=seed)


def faults(surface: str, size: Size, seed: int) -> Cases:
    """Each fault in a deployment that is sound without it."""
    for number, fault in enumerate(FAULTS):
        yield ConfigCase(surface, MODELS[number % 2], context=65536, fault=fault, seed=seed)


CONFIG_FAMILIES = {
    "config_models": models,
    "config_ranks": ranks,
    "config_switches": switches,
    "config_context_parallel": context_parallel,
    "config_sizes": sizes,
    "config_faults": faults,
}

"""What cannot run is refused before anything runs, and nothing is carried from one model to the next (INV-122, 123)."""

import copy

from dsv4_conformance.cases.config_case import FAULTS, ConfigCase, config_of, environment_of, options_of
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.runner.deployment import attempt, convention, resolved
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

CONFIG = ("EngineConfig",)


@requirement("INV-122", on=CONFIG, cases="config_faults")
def test_unsupported_deployment_is_refused_by_name(subject: Subject, case: ConfigCase) -> None:
    """INV-122: the fault alone makes the difference, and the sentence names the field."""
    if not convention(subject).refuses:
        raise NotApplicable("the adapter declares that it drives no part of the engine that refuses.")
    resolved(subject, case.with_(fault=""))
    arguments = config_of(case), options_of(case), environment_of(case)
    sentence = subject.refused("resolve_config", *arguments)
    words = FAULTS[case.fault].words
    named = any(word in sentence.lower() for word in words)
    subject.expect(named, f"the refusal of {case.fault} names none of {', '.join(words)}: {sentence[:200]}")
    subject.expect("\n" not in sentence.strip(), f"the refusal of {case.fault} is more than a sentence.")


@requirement("INV-122", on=CONFIG, cases="config_sizes")
def test_other_page_size_is_refused_or_replaced_aloud(subject: Subject, case: ConfigCase) -> None:
    """INV-122: pages of 64 or 128 tokens, in which C128 has half an entry or one, are never used silently."""
    resolved(subject, case)["page_size"]
    for size in (64, 128):
        found = attempt(subject, case, page_size=size)
        if isinstance(found, str):
            said = "page" in found.lower() or "block" in found.lower()
            subject.expect(said, f"the refusal of page_size {size} does not name it: {found[:200]}")
            continue
        subject.expect(found["page_size"] == 256, f"page_size is {found['page_size']}; {size} was taken as it is.")
        aloud = any("page" in text.lower() or "block" in text.lower() for text in found.warnings)
        subject.expect(aloud, f"page_size {size} was replaced without a warning.")


@requirement("INV-123", on=CONFIG, cases="config_models")
def test_resolving_changes_and_keeps_nothing(subject: Subject, case: ConfigCase) -> None:
    """INV-123: arguments stay as they are, and another model resolved in between changes no setting."""
    first = resolved(subject, case)
    config, environment = config_of(case), environment_of(case)
    before = copy.deepcopy(config)
    subject.ask("resolve_config", config, options_of(case), environment)
    subject.expect(config == before, "resolve_config changed the config it was given.")
    subject.expect(environment == environment_of(case), "resolve_config changed the environment it was given.")
    other = {"flash": "pro", "pro": "flash"}[case.model]
    resolved(subject, ConfigCase(case.surface, other, tp=8, cp=2, change="other_rope"))
    again = resolved(subject, case)
    for name in ("compress_ratios", "rope_bases", "yarn", "index_topk", "sparse_prefill", "local_heads"):
        subject.expect(first[name] == again[name], f"{name} is another after a second model was resolved.")

"""Layers of the released models' shapes, as they are served (INV-42)."""

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

LAYER = ("AttentionLayer",)


@requirement("INV-42", on=LAYER, cases="layer_models")
def test_the_models_layers_follow_the_definition(subject: Subject, case: LayerCase) -> None:
    """INV-42: Flash and Pro layers of every ratio, bfloat16 on fp8 pages, on one rank: every row is right."""
    LayerRun(subject, case).run()

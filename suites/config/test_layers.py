"""What each layer computes with comes from the model's config: ratio, rope, YaRN, top-k, scale (INV-111 to 115)."""

from dsv4_conformance.cases.config_case import ConfigCase, geometry_of
from dsv4_conformance.oracle import config as oracle
from dsv4_conformance.runner.deployment import resolved
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

CONFIG = ("EngineConfig",)


def _first_difference(told: list[object], wanted: list[object]) -> str:
    """Where two per-layer tables part, in words."""
    for layer, (one, other) in enumerate(zip(told, wanted, strict=False)):
        if one != other:
            return f"layer {layer} has {one}, not {other}"
    return f"there are {len(told)} layers, not {len(wanted)}"


@requirement("INV-111", on=CONFIG, cases="config_models")
def test_every_layer_has_its_own_ratio_drafts_included(subject: Subject, case: ConfigCase) -> None:
    """INV-111: compress_ratios are the config's, layer by layer, 0 for uncompressed ones; draft layers are 0."""
    geometry, told = geometry_of(case), resolved(subject, case)["compress_ratios"]
    wanted = list(geometry.compress_ratios)
    if case.spelling == "transformers":  # that spelling lists main layers only
        main = geometry.num_hidden_layers
        wanted = wanted[:main] + [0] * max(len(told) - main, 0)
    subject.expect(told == wanted, f"compress_ratios: {_first_difference(told, [*wanted])}.")


@requirement("INV-112", on=CONFIG, cases="config_models")
def test_rope_base_follows_the_layer_s_ratio(subject: Subject, case: ConfigCase) -> None:
    """INV-112: rope_theta in layers of ratio 0, compress_rope_theta in all others, as the config has them."""
    told = resolved(subject, case)["rope_bases"]
    ropes = oracle.layer_ropes(geometry_of(case))
    wanted = [base for base, _ in ropes][: len(told) if case.spelling == "transformers" else None]
    subject.expect(told == wanted, f"rope_bases: {_first_difference(told, [*wanted])}.")


@requirement("INV-113", on=CONFIG, cases="config_models")
def test_yarn_scales_compressed_layers_and_no_others(subject: Subject, case: ConfigCase) -> None:
    """INV-113: YaRN is on in layers of ratio 4 and 128 and off in layers of ratio 0."""
    told = resolved(subject, case)["yarn"]
    ropes = oracle.layer_ropes(geometry_of(case))
    wanted = [scaled for _, scaled in ropes][: len(told) if case.spelling == "transformers" else None]
    subject.expect(told == wanted, f"yarn: {_first_difference(told, [*wanted])}.")


@requirement("INV-113", on=CONFIG, cases="config_models")
def test_yarn_parameters_are_the_config_s(subject: Subject, case: ConfigCase) -> None:
    """INV-113: factor, original length and the two betas in effect are those of the config."""
    told, yarn = resolved(subject, case), geometry_of(case).rope_scaling
    for name in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"):
        got = told.pool("yarn_parameters", name)
        subject.expect(got == getattr(yarn, name), f"YaRN's {name} is {got}, and {getattr(yarn, name)} in the config.")


@requirement("INV-114", on=CONFIG, cases="config_models")
def test_top_k_is_the_config_s(subject: Subject, case: ConfigCase) -> None:
    """INV-114: index_topk in effect is the config's, 512 or 1024, whatever the model is called."""
    got, wanted = resolved(subject, case)["index_topk"], geometry_of(case).index_topk
    subject.expect(got == wanted, f"index_topk is {got}, and {wanted} in the config.")


@requirement("INV-114", on=CONFIG, cases="config_models")
def test_window_is_the_config_s(subject: Subject, case: ConfigCase) -> None:
    """INV-114: sliding_window in effect is the config's."""
    got, wanted = resolved(subject, case)["sliding_window"], geometry_of(case).sliding_window
    subject.expect(got == wanted, f"sliding_window is {got}, and {wanted} in the config.")


@requirement("INV-115", on=CONFIG, cases="config_models")
def test_softmax_scale_knows_no_yarn(subject: Subject, case: ConfigCase) -> None:
    """INV-115: the softmax scale is 512 ** -0.5 whatever YaRN's factor is."""
    got = resolved(subject, case)["softmax_scale"]
    subject.expect(abs(got * 512**0.5 - 1) < 1e-6, f"softmax_scale is {got}, not 512 ** -0.5.")

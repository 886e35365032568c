import pytest

from dsv4_conformance.accuracy.bodies import settings_of
from dsv4_conformance.accuracy.harness import generation_of
from dsv4_conformance.accuracy.probe import Probe, _seeds, asked_thinking, probe
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.errors import BadInput
from tests.accuracy.served import endpoint, served

pytestmark = pytest.mark.usefixtures("questions")

PLAIN = settings_of(generation_of("dsv4_gsm8k", {}))
THINKING = settings_of(generation_of("dsv4_aime25", {}))


def found(behaviour: Behaviour, settings: dict[str, object] = PLAIN, model: str | None = None) -> Probe:
    with served(behaviour) as (url, server):
        result = probe(endpoint(url, tries=1), model, settings, seed=1000)
        assert server.other == 5
        assert not server.asked
    return result


@pytest.mark.parametrize(
    ("behaviour", "seeds"),
    [
        (Behaviour(), "honoured"),
        (Behaviour(ignore_seeds=True), "no effect"),
        (Behaviour(one_seed=True), "all the same"),
    ],
)
@pytest.mark.parametrize("settings", [PLAIN, THINKING], ids=["plain", "thinking"])
def test_what_seeds_do(behaviour: Behaviour, seeds: str, settings: dict[str, object]) -> None:
    assert found(behaviour, settings).seeds == seeds


def test_what_the_server_says_of_itself() -> None:
    assert found(Behaviour(version="7")).says == {"owned_by": "dsv4-conformance", "version": "simulated 7"}


def test_replies_that_cannot_be_used_are_found_before_the_run() -> None:
    with pytest.MonkeyPatch.context() as patch, served(Behaviour()) as (url, _):
        patch.setattr("dsv4_conformance.accuracy.replies.ENDED", frozenset({"done"}))
        with pytest.raises(BadInput, match="answers in a form that cannot be used: the reply does not say"):
            probe(endpoint(url, tries=1), None, PLAIN, seed=1000)


def test_what_is_found() -> None:
    plain = found(Behaviour(model="m"))
    assert (plain.model, plain.served, plain.thinking) == ("m", "m", "off")
    assert found(Behaviour(), THINKING).thinking == "on"
    assert plain.server() == {"model": "m", "template": plain.template}


def test_another_template_is_seen_in_the_token_counts() -> None:
    assert found(Behaviour()).template == found(Behaviour(stream=5)).template
    assert found(Behaviour()).template != found(Behaviour(template="v2")).template


def test_models() -> None:
    assert found(Behaviour(model="m"), model="m").model == "m"
    with pytest.raises(BadInput, match="no model 'x' but m; correct --model"):
        found(Behaviour(model="m"), model="x")


def test_nobody_there() -> None:
    with pytest.raises(BadInput, match=r"No server answers at http://127.0.0.1:9/v1/models .*correct --endpoint"):
        probe(endpoint("http://127.0.0.1:9"), None, PLAIN, seed=1)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, None),
        ({"chat_template_kwargs": {}}, None),
        ({"chat_template_kwargs": {"thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_whether_thinking_is_asked_for(settings: dict[str, object], asked: bool | None) -> None:
    assert asked_thinking(settings) is asked


@pytest.mark.parametrize(
    ("replies", "found"),
    [
        # The second, of the same seed, drifts off late: other sums, not another seed.
        (
            ["We need numbers: 4, 80, 2, 11, 3, 9", "We need numbers: 4, 80, 2, 11, 3, 7", "We need 7", "We x"],
            "honoured",
        ),
        (["We need numbers: 4", "We need numbers: 5", "We need numbers: 6", "We need numbers: 7"], "no effect"),
        (["7, 8", "1, 2", "3, 4", "5, 6"], "no effect"),
        (["7, 8", "7, 8", "3, 4", "7, 8"], "honoured"),
        (["7, 8"] * 4, "all the same"),
    ],
)
def test_seeds_are_told_from_how_long_replies_agree(replies: list[str], found: str) -> None:
    assert _seeds(replies) == found

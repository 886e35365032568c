"""The fixtures that suite functions take: ``case`` and ``subject``. torch is first imported here, in the worker."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from dsv4_conformance.cases.case import Case
from dsv4_conformance.plugin.blocks_apart import keep_apart
from dsv4_conformance.plugin.endpoint import tasks_of
from dsv4_conformance.plugin.keys import PROCESS
from dsv4_conformance.plugin.sanitizer import log_here
from dsv4_conformance.runner.endpoint import EndpointSubject
from dsv4_conformance.suite import ENDPOINT

if TYPE_CHECKING:
    pass


@pytest.fixture(scope="session")
def _dsv4_session(request: pytest.FixtureRequest) -> Any:
    """The adapter on its device, made once per process, after this process has leased its GPU."""
    process = request.config.stash[PROCESS]
    process.require_gpu()
    with process.watchdog.starting() if process.watchdog is not None else nullcontext():
        from dsv4_conformance.runner.session import Session

        if log_here() is not None:
            keep_apart()
        process.session = Session(process.settings.implementation, process.settings.device)
    return process.session


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """The case: a frozen description of the input."""
    described: Case = request.param.planned.case
    return described


@pytest.fixture(scope="session")
def _dsv4_tasks(request: pytest.FixtureRequest) -> Any:
    """The accuracy runs of this session, each made when first asked for."""
    return tasks_of(request.config.stash[PROCESS])


@pytest.fixture
def subject(request: pytest.FixtureRequest, case: Case) -> Any:
    """What is under test, ready to be judged on ``case``: the adapter, or for an accuracy case the server."""
    planned = request.node.callspec.params["case"].planned
    if planned.surface == ENDPOINT:
        return EndpointSubject(request.getfixturevalue("_dsv4_tasks"))
    return request.getfixturevalue("_dsv4_session").subject(planned)

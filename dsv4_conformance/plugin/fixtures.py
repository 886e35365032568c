"""The fixtures that suite functions take: ``case`` and ``subject``. torch is first imported here, in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dsv4_conformance.cases.case import Case
from dsv4_conformance.plugin.keys import PROCESS

if TYPE_CHECKING:
    from dsv4_conformance.runner.session import Session


@pytest.fixture(scope="session")
def _dsv4_session(request: pytest.FixtureRequest) -> Session:
    """The adapter on its device, made once per process, after this process has leased its GPU."""
    process = request.config.stash[PROCESS]
    process.require_gpu()
    from dsv4_conformance.runner.session import Session

    return Session(process.settings.implementation, process.settings.device)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """The case: a frozen description of the input."""
    described: Case = request.param.planned.case
    return described


@pytest.fixture
def subject(request: pytest.FixtureRequest, case: Case, _dsv4_session: Session) -> Any:
    """The implementation under test, ready to be called on the inputs of ``case`` and to be judged."""
    return _dsv4_session.subject(request.node.callspec.params["case"].planned)

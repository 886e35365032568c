"""What `pytest suites/accuracy` says when it has nothing to do."""

import pytest


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> str:
    """Why there is no test, where this folder alone was asked for and no server was named."""
    if items or config.getoption("dsv4_endpoint", None):
        return ""
    return "The accuracy suite asks a served model: name it with --dsv4-endpoint URL (docs/accuracy.md)."

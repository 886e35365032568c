"""How a run is refused: one sentence under the program's name, an exit code, no traceback."""

from __future__ import annotations

from typing import Any

import pytest

# pytest prints the type's name before the sentence: the user should read who speaks, not the name of a class.
_EXIT: Any = type("dsv4-conformance", (pytest.exit.Exception,), {"__module__": "builtins"})


def refusal(sentence: str, code: int) -> Exception:
    """The exception that ends pytest with this sentence and this exit code."""
    exit_exception: Exception = _EXIT(sentence, code)
    return exit_exception

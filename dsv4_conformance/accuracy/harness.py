"""lm-eval as this suite needs it: without torch and transformers, without its own log lines and progress bars."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from dsv4_conformance.accuracy.tasks import TASK_FILES
from dsv4_conformance.errors import BadInput

EXTRA = frozenset({"aiohttp", "datasets", "lm_eval", "yaml"})
"""Packages of the extra ``accuracy``, as they are imported."""


@contextlib.contextmanager
def torch_ignored() -> Iterator[None]:
    """While this lasts, datasets can be imported without its looking for torch, and tqdm shows no bars."""
    wanted = {"USE_TORCH": "0", "TQDM_DISABLE": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def lm_eval_without_torch() -> Iterator[None]:
    """While this lasts, lm-eval can be imported and used. Raises BadInput where it is not installed.

    ``simple_evaluate`` describes the machine when it is done, and for that imports torch and transformers wherever they
    are installed. Nothing here reads that description, and torch alone would cost seconds, so it is left out; so is
    its question to git, which complains on stderr where there is no checkout.
    """
    logger = logging.getLogger("lm_eval")
    level = logger.level
    with torch_ignored():
        evaluator = _evaluator()
        describe, commit = evaluator.add_env_info, evaluator.get_git_commit_hash
        logger.setLevel(logging.ERROR)
        evaluator.add_env_info = lambda storage: None
        evaluator.get_git_commit_hash = lambda: None
        try:
            yield
        finally:
            evaluator.add_env_info, evaluator.get_git_commit_hash = describe, commit
            logger.setLevel(level)


def _evaluator() -> Any:
    try:
        import lm_eval.evaluator
        import lm_eval.tasks
    except ImportError as error:
        raise without_extra(error) from None
    return lm_eval.evaluator


def without_extra(error: ImportError) -> BadInput:
    """What to say where a package of the extra ``accuracy`` cannot be imported."""
    return BadInput(
        f"Accuracy runs need lm-eval, datasets and aiohttp ({error}); install them with "
        "`pip install 'dsv4-conformance[accuracy]'`."
    )


def generation_of(file: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Generation settings of the task file ``file`` under lm-eval's names, with ``overrides``; reads no questions.

    An override that is itself a mapping changes the entries it names and keeps the others; None removes a setting.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads the file as data: what is tagged !function stays a name."""

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))
    settings = dict(yaml.load((TASK_FILES / f"{file}.yaml").read_text(encoding="utf-8"), Loader)["generation_kwargs"])
    for name, value in overrides.items():
        present = settings.get(name)
        settings[name] = {**present, **value} if isinstance(present, dict) and isinstance(value, Mapping) else value
    return {name: value for name, value in settings.items() if value is not None}

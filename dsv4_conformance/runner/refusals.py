"""A call that may be refused: the refusal, or what came instead."""

from __future__ import annotations

import torch

from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.runner.execute import Call, Outputs, convention_of, implementation_method, returned, surface_of
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.texts import text_of


def answer_or_refusal(subject: Subject, call: Call) -> Outputs | str:
    """What the adapter answers to ``call``, which is made as it is, or the words of what it raised.

    Raises ConformanceFailure if the device does not survive the call, or if what comes back has not the promised form.
    """
    surface = surface_of(call)
    method = getattr(subject.implementation, implementation_method(surface))
    try:
        result = method(call)
        if call.q.is_cuda:
            torch.cuda.synchronize()
    except (torch.OutOfMemoryError, MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        if "cuda error" in str(error).lower():
            raise ConformanceFailure(f"{surface}: the call was taken, and ended in: {text_of(error)[:200]}") from error
        return text_of(error) or type(error).__name__
    except BaseException as error:  # it would end the process, or a test
        raise ConformanceFailure(
            f"{surface}: the call ended in {type(error).__name__}, which is no refusal."
        ) from error
    return returned(call, convention_of(subject.implementation, surface), result)

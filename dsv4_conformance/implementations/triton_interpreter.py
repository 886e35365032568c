"""Corrections of Triton's CPU interpreter, so that a kernel computes there what it computes on a GPU.

The interpreter (``TRITON_INTERPRET=1``, seen in triton 3.4 to 3.9) holds bf16 as its bits in uint16 and computes on
the bits: in ``tl.dot``, in arithmetic and in comparisons. Its conversions cut float32 to bf16 instead of rounding, lose
the carry of a mantissa on the way to fp8 (31.66 becomes 16), do not saturate, and read fp8 NaN as a number. A ``range``
over loaded bounds gives Python integers, which have no ``.to``; ``@autotune`` asks for a driver.
``tests/engines/test_sglang_interpreter.py`` compares each correction with plain torch.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

from dsv4_conformance.errors import BadInput

NOTE = "Triton kernels run in Triton's interpreter, its defects corrected (bf16, fp8, range, autotune)"
ARITHMETIC = ("fadd", "fsub", "fmul", "fdiv", "frem", "minimumf", "maximumf", "minnumf", "maxnumf")
COMPARISONS = ("OLT", "OGT", "OLE", "OGE", "OEQ", "ONE", "ULT", "UGT", "ULE", "UGE", "UEQ", "UNE")
_done: list[bool] = []


def start() -> None:
    """Switch the interpreter on, corrected. To be called before the kernels' modules are imported.

    Raises BadInput if triton is there already, imported to compile: its own library functions are then no Python.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    if _done:
        return
    interpreter = import_module("triton.runtime.interpreter")
    if not isinstance(import_module("triton.language").max, interpreter.InterpretedFunction):
        raise BadInput(
            "triton was imported before its interpreter was switched on; set TRITON_INTERPRET=1 in the environment."
        )
    _done.append(True)
    _correct_conversions(interpreter)
    _correct_bf16(interpreter)
    _correct_range(interpreter)
    _correct_autotune(import_module("triton.runtime.autotuner"))
    _hasten(interpreter)


def _hasten(interpreter: Any) -> None:
    """Leave out the checks for integer overflow: more than half of the time, and a compiled kernel has none."""
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    _patch_once_per_launch(interpreter)
    plain = interpreter.tl.dtype
    look_up = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def remembered(found: Any) -> Any:
        if type(found) is not plain:
            return look_up(found)
        if found.name not in known:
            known[found.name] = look_up(found)
        return known[found.name]

    interpreter._get_np_dtype = remembered


def _patch_once_per_launch(interpreter: Any) -> None:
    """The language is bent to the interpreter once per launch and module, not at every call of a device function."""
    import numpy as np

    patch = interpreter._patch_lang
    executor = interpreter.GridExecutor
    launch = executor.__call__
    bent: set[int] = set()

    def patch_once(fn: Any) -> Any:
        if id(fn.__globals__) in bent:
            return interpreter._LangPatchScope()
        bent.add(id(fn.__globals__))
        return patch(fn)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        bent.clear()
        with np.errstate(all="ignore"):  # a masked element may overflow, as it may on a GPU
            return launch(self, *arguments, **named)

    interpreter._patch_lang = patch_once
    executor.__call__ = call


def _formats(tl: Any) -> dict[Any, Any]:
    """Triton's types that conversions are corrected between, and torch's."""
    import torch

    return {
        tl.float64: torch.float64,
        tl.float32: torch.float32,
        tl.float16: torch.float16,
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
        tl.float8e4b8: torch.float8_e4m3fnuz,
        tl.float8e5b16: torch.float8_e5m2fnuz,
    }


def _correct_conversions(interpreter: Any) -> None:
    """Floating conversions round to the nearest, ties to even; those to fp8 saturate, as the GPU's instructions do."""
    import numpy as np
    import torch

    tl = interpreter.tl
    known = _formats(tl)
    given: Callable[..., Any] = interpreter._convert_float
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source not in known or target not in known or rounding == toward_zero:
            return given(data, source, target, rounding)
        bits = torch.from_numpy(np.array(data).reshape(-1)).view(known[source])
        if known[target].itemsize == 1:
            # A clamp in float32 keeps NaN and what lies within; 8-bit formats have no infinity worth keeping.
            top = torch.finfo(known[target]).max
            bits = bits.to(torch.float32).clamp(-top, top)
        unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[known[target].itemsize]
        return bits.to(known[target]).view(torch.uint8).numpy().view(unsigned).reshape(np.shape(data))

    interpreter._convert_float = convert
    _correct_casts(interpreter)


def _correct_casts(interpreter: Any) -> None:
    """Casts between floating types convert; the interpreter takes numbers for the bits of a bf16, except from and to
    float32."""
    tl, builder = interpreter.tl, interpreter.InterpreterBuilder
    given = builder.cast_impl
    known = _formats(tl)

    def cast(self: Any, source: Any, target: Any) -> Any:
        start, end = source.dtype.scalar, target.scalar
        if end == tl.bfloat16 and start not in known:
            source, start = given(self, source, tl.float32), tl.float32
        if start not in known or end not in known:
            return given(self, source, target)
        data = interpreter._convert_float(source.data, start, end, None)
        return interpreter.TensorHandle(data.view(interpreter._get_np_dtype(end)), end)

    builder.cast_impl = cast


def _correct_bf16(interpreter: Any) -> None:
    """Arithmetic, comparisons and dots of bf16 run in float32; arithmetic rounds its result to bf16."""
    tl, builder, handle = interpreter.tl, interpreter.InterpreterBuilder, interpreter.TensorHandle
    import numpy as np

    def narrow(x: Any) -> bool:
        return bool(x.dtype.scalar == tl.bfloat16)

    def wide(x: Any) -> Any:
        if not narrow(x):
            return x
        return handle(interpreter._convert_float(x.data, tl.bfloat16, tl.float32, None).view(np.float32), tl.float32)

    def corrected(name: str, rounds: bool) -> None:
        given = getattr(builder, name)

        def run(self: Any, left: Any, right: Any) -> Any:
            if not (narrow(left) and narrow(right)):
                return given(self, left, right)
            result = given(self, wide(left), wide(right))
            if not rounds:
                return handle(result.data, tl.int1)
            return handle(interpreter._convert_float(result.data, tl.float32, tl.bfloat16, None), tl.bfloat16)

        setattr(builder, name, run)

    for name in ARITHMETIC:
        corrected(f"create_{name}", rounds=True)
    for name in COMPARISONS:
        corrected(f"create_fcmp{name}", rounds=False)

    dot = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any, **named: Any) -> Any:
        return dot(self, wide(a), wide(b), *rest, **named)

    builder.create_dot = create_dot


def _correct_range(interpreter: Any) -> None:
    """``range`` in a kernel's module gives tensors where a bound is one."""
    tl, handle = interpreter.tl, interpreter.TensorHandle
    import numpy as np

    def tensors(*bounds: Any) -> Any:
        if not any(isinstance(bound, tl.tensor) for bound in bounds):
            return builtins.range(*bounds)

        def steps() -> Iterator[Any]:
            for number in builtins.range(*(int(bound) for bound in bounds)):
                yield tl.tensor(handle(np.array([number], dtype=np.int32), tl.int32), tl.int32)

        return steps()

    executor = interpreter.GridExecutor
    given = executor.__call__

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        self.fn.__globals__.setdefault("range", tensors)
        return given(self, *arguments, **named)

    executor.__call__ = call


def _correct_autotune(autotuner: Any) -> None:
    """Nothing is timed: the configuration with the largest blocks is taken, since each program costs its time."""

    def size(config: Any) -> int:
        product = 1
        for name, value in config.kwargs.items():
            product *= value if name.startswith("BLOCK") else 1
        return product

    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        config = max(self.configs, key=size)
        return self.fn.run(*arguments, **{**named, **config.kwargs})

    autotuner.Autotuner.run = run

"""The process of one side of an A/B comparison: started, asked, and started again when a case has ended it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4_conformance.errors import BadInput

START_S = 600.0
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Build:
    """What one side is. ``path``: folder that its modules are looked for in first; ``python``: its interpreter."""

    implementation: str
    path: Path | None = None
    python: str = sys.executable
    device: str = "auto"


class SideProcess:
    """A running side. Its answers are dicts; a case that ends the process is CRASH, one that takes too long TIMEOUT."""

    def __init__(self, mark: str, build: Build, timeout_s: float) -> None:
        """Start it. Raises BadInput, in a sentence, if the implementation or the interpreter cannot be used."""
        self.mark, self.build, self.timeout_s = mark, build, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self.hello = self._start()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = self._answer(self.timeout_s)
        except (BrokenPipeError, EOFError):
            code = process.wait()
            self._end()
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return {"status": "CRASH", "reason": f"The process ended in this case: {ended}."}
        except TimeoutError:
            self._end()
            return {"status": "TIMEOUT", "reason": f"It took longer than {self.timeout_s:g} s and was ended."}
        return answer

    def close(self) -> None:
        """End the process."""
        self._end()

    def _start(self) -> dict[str, Any]:
        read, write = os.pipe()
        words = [self.build.python, "-m", "dsv4_conformance.report.ab_side"]
        words += [self.build.implementation, self.build.device, str(write)]
        folders = [str(self.build.path.resolve())] if self.build.path else [os.getcwd()]
        folders += [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(write,), env=environment
            )
        except OSError as error:
            os.close(read)
            raise BadInput(
                f"{self.build.python} cannot be started ({error.strerror}); name a Python with --python."
            ) from None
        finally:
            os.close(write)
        self._read, self._buffer = read, b""
        try:
            hello = self._answer(START_S)
        except (EOFError, TimeoutError):
            self._end()
            raise BadInput(
                f"Build {self.mark} ({self.build.implementation}) could not be loaded; what it printed stands above."
            ) from None
        hello["from"] = f" from {self.build.path}" if self.build.path else ""
        if "refused" in hello:
            self._end()
            raise BadInput(f"Build {self.mark}: {hello['refused']}")
        return hello

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line. Raises TimeoutError, or EOFError when the process has ended."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        os.close(self._read)

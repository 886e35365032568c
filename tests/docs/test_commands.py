"""The commands in the documentation work, and print what the documentation shows.

A fenced ``bash`` or ``console`` block is run when the line before its fence is one of

    <!-- runnable -->                     in a scratch folder that the document's blocks share, in order
    <!-- runnable in=checkout -->         in the root of the checkout
    <!-- runnable exit=1 -->              the last command ends in this exit code (default 0)

In a ``console`` block, ``$ `` starts a command and every other line has to occur in its output, in order; ``...``
stands for anything. ``<!-- file NAME -->`` before any fence writes the block to NAME in the scratch folder.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^<!-- (runnable|file|ci)\b *(.*?) *-->\n```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 240


@dataclass(frozen=True)
class Block:
    """A marked fenced block: the marker's word and arguments, the fence's language, the text in it."""

    kind: str
    arguments: str
    language: str
    text: str

    def option(self, name: str, default: str) -> str:
        """Value of ``name=value`` in the marker."""
        return dict(word.split("=") for word in self.arguments.split()).get(name, default)


def blocks(markdown: str) -> list[Block]:
    """The marked blocks of a document, in order."""
    return [Block(*match) for match in BLOCK.findall(markdown)]


def steps(block: Block) -> list[tuple[str, list[str]]]:
    """(command, lines it has to print) for each command of a block."""
    if block.language == "bash":
        return [(block.text, [])]
    assert block.language == "console", f"a runnable block is bash or console, not {block.language!r}"
    found: list[tuple[str, list[str]]] = []
    continued = False
    for line in block.text.splitlines():
        if continued:
            found[-1] = (f"{found[-1][0]}\n{line.strip()}", [])
        elif line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line.rstrip())
        continued = line.endswith("\\") and not found[-1][1]
    return found


def missing(shown: list[str], printed: str) -> str | None:
    """The first of the ``shown`` lines that ``printed`` does not have after the lines before it."""
    rest = iter(printed.splitlines())
    for line in shown:
        pattern = re.escape(line).replace(r"\.\.\.", ".*")
        if line != "..." and not any(re.fullmatch(pattern, candidate.rstrip()) for candidate in rest):
            return line
    return None


def run(block: Block, cwd: Path) -> None:
    """Run a block's commands; fails the test on another exit code or on output that is not what the block shows."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DSV4_"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
    commands = steps(block)
    for number, (command, shown) in enumerate(commands, 1):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        expected = int(block.option("exit", "0")) if number == len(commands) else 0
        assert done.returncode == expected, f"$ {command}\n{done.stdout}"
        absent = missing(shown, done.stdout)
        assert absent is None, f"$ {command}\nshows the line {absent!r}, but printed\n{done.stdout}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_do_what_the_document_says(document: Path, tmp_path: Path) -> None:
    for block in blocks(document.read_text()):
        if block.kind == "file":
            (tmp_path / block.arguments).write_text(block.text)
        elif block.kind == "runnable":
            run(block, ROOT if block.option("in", "scratch") == "checkout" else tmp_path)


def test_every_marker_belongs_to_a_block() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        assert len(re.findall(r"^<!-- (?:runnable|file|ci)\b", text, re.MULTILINE)) == len(blocks(text)), document


def test_readme_has_runnable_commands() -> None:
    assert any(block.kind == "runnable" for block in blocks((ROOT / "README.md").read_text()))


def test_ci_runs_the_readmes_setup_commands_verbatim() -> None:
    script = (ROOT / ".ci/run").read_text()
    setup = [block.text for block in blocks((ROOT / "README.md").read_text()) if block.kind == "ci"]
    assert len(setup) == 2
    assert not [text for text in setup if text not in script]


# The runner has to be able to fail.


@pytest.mark.parametrize(
    "block",
    [
        "<!-- runnable -->\n```bash\nfalse\ntrue\n```",
        "<!-- runnable exit=1 -->\n```bash\ntrue\n```",
        "<!-- runnable exit=1 -->\n```console\n$ false\n$ true\n```",
        "<!-- runnable -->\n```console\n$ echo one\ntwo\n```",
        "<!-- runnable -->\n```console\n$ printf 'one\\ntwo\\n'\ntwo\none\n```",
        "<!-- runnable -->\n```console\n$ echo one more\none\n```",
    ],
)
def test_a_document_that_is_wrong_fails(block: str, tmp_path: Path) -> None:
    (parsed,) = blocks(block)
    with pytest.raises(AssertionError):
        run(parsed, tmp_path)


@pytest.mark.parametrize(
    "block",
    [
        "<!-- runnable -->\n```bash\ntest -d .\n```",
        "<!-- runnable exit=3 -->\n```console\n$ echo one\none\n$ echo two; exit 3\ntwo\n```",
        "<!-- runnable -->\n```console\n$ printf 'in %s s\\nx\\nend\\n' \\\n    1.25\nin ... s\n...\nend\n```",
    ],
)
def test_a_document_that_is_right_passes(block: str, tmp_path: Path) -> None:
    (parsed,) = blocks(block)
    run(parsed, tmp_path)

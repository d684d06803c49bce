"""The documentation tells the truth: its code runs, its tables are complete, its rules hold."""

import contextlib
import dataclasses
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import typer

import opgraft as og
from opgraft import cli, environment
from opgraft.native import roles

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

_FENCE = re.compile(
    r'(?:<!-- (?P<mark>[^>]*?) -->\n)?^```(?P<language>\w+)(?: title="(?P<title>[^"]*)")?\n'
    r"(?P<text>.*?)^```$",
    re.M | re.S,
)

needs_docs = pytest.mark.skipif(not DOCS.is_dir(), reason="this copy has no docs/ folder")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the comment `<!-- mark -->` above it."""

    language: str
    title: str
    mark: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            match["language"],
            match["title"] or "",
            match["mark"] or "",
            match["text"],
            text.count("\n", 0, match.start("text")),
        )
        for match in _FENCE.finditer(text)
    ]


def run(block: Block, page: Path, namespace: dict) -> str | None:
    """Do what a block says; what it prints, or None for a block that is not run.

    - `python` runs in the page's own namespace, in order; with the title of a
      file it is a program, and runs in a process of its own.
    - `c` with a title is written to that file.
    - `sh` runs if it is marked so.
    """
    if block.language == "c" and block.title:
        Path(block.title).write_text(block.text)
    elif block.language == "sh" and block.mark == "run":
        subprocess.run(["sh", "-ec", block.text], check=True)
    elif block.language == "python" and block.title:
        Path(block.title).write_text(block.text)
        return program(block.title)
    elif block.language == "python":
        # Lines as in the page, so that a traceback points there.
        code = compile("\n" * block.line + block.text, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        return printed.getvalue()
    return None


def program(*command, status: int = 0) -> str:
    """Run a Python program; its output, without what TensorFlow logs."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def is_like(expected: str, printed: str) -> bool:
    """Whether the text is the expected one, where `...` stands for anything."""
    parts = [re.escape(part) for part in expected.strip().split("...")]
    return re.fullmatch(".*".join(parts), printed.strip(), re.S) is not None


@needs_docs
@pytest.mark.filterwarnings("ignore:the Python function")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace, printed = {"__name__": page.stem}, None
    found = blocks(page)
    for block in found:
        if block.title == "Output":
            assert printed is not None, f"{page.name}:{block.line}: nothing ran before this output"
            assert is_like(block.text, printed), f"{page.name}:{block.line}: printed\n{printed}"
        else:
            printed = run(block, page, namespace)
    assert all(block.mark in ("", "run") for block in found)


def test_every_opened_block_of_a_page_was_found():
    for page in PAGES:
        fences = re.findall(r"^\s*```", page.read_text(), re.M)
        assert len(fences) == 2 * len(blocks(page)), page.name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert program(example).strip()
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind where it is called"


def test_the_first_example_takes_thirty_lines():
    assert EXAMPLES[0].stem == "01_your_own_c_kernel"
    text = re.sub(r'\A""".*?"""', "", EXAMPLES[0].read_text(), flags=re.S)
    code = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert 15 <= len(code) <= 30

"""The documentation tells the truth: its code runs, its tables are complete, its rules hold."""

import ast
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
from opgraft.verification import Report, examination

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SLOW = ("approximate-networks", "saving", "verify")  # pages that train, or start many processes
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
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in SLOW))
        for page in PAGES
    ],
)
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
    if page.stem == "verify":
        assert_lists_the_checks(page, namespace)


def assert_lists_the_checks(page, namespace) -> None:
    """The page's tables have every check of its own reports, and what each of them proves."""
    reports = [value for value in namespace.values() if isinstance(value, Report)]
    checks = [check for r in reports for verdict in r.verdicts for check in verdict.checks]
    proved = [(check.name.rpartition(": ")[2], check.proves) for check in checks if check.proves]
    made = {(name, sentence(text)) for name, text in [*proved, *examination.PROVES.items()]}
    tables = page.read_text().partition("## The checks")[2]
    listed = set(re.findall(r"^\|[^|]*\| ([^|]+) \| ([^|]+\.) \|$", tables, re.M))
    assert sorted(made - listed) == []
    assert sorted(listed - made) == []


def sentence(text: str) -> str:
    """As it stands in a table, where < would open an HTML tag."""
    text = text.replace("<", "⟨").replace(">", "⟩")
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


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


# ---- what the pages list ----------------------------------------------------------


def cells(page: str) -> list[list[str]]:
    """The rows of all tables of a page."""
    lines = (DOCS / page).read_text().splitlines()
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]


@needs_docs
@pytest.mark.parametrize("table", ["POINTERS", "VJP_POINTERS", "TEXTS", "MATMUL", "CONV2D"])
def test_the_tables_of_roles_are_those_of_the_code(table):
    documented = cells("c-function.md")
    for role, names in getattr(roles, table).items():
        row = [f"`{role}`", " ".join(f"`{name}`" for name in names.split())]
        assert row in documented, f"docs/c-function.md should have the row | {' | '.join(row)} |"


@needs_docs
def test_the_page_lists_no_role_that_does_not_exist():
    pointers = {**roles.POINTERS, **roles.VJP_POINTERS, **roles.TEXTS}
    known = {**pointers, **roles.MATMUL, **roles.CONV2D}
    text = (DOCS / "c-function.md").read_text()
    section = text[text.index("## Roles") : text.index("### Other names")]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == set(known)
    needed = re.search(r"convolution; needed are (.*?):", section, re.S)[1]
    assert set(re.findall(r"`(\w+)`", needed)) == set(roles.CONV2D_NEEDS) & set(roles.CONV2D)


@needs_docs
def test_the_page_lists_every_environment_variable_and_no_other():
    listed = [row[0].strip("`") for row in cells("environment.md") if "OPGRAFT_" in row[0]]
    assert sorted(listed) == sorted(environment.VARIABLES)
    for page in PAGES:
        named = set(re.findall(r"OPGRAFT_[A-Z_]+", page.read_text())) - {"OPGRAFT_THREADS"}
        assert named <= {*environment.VARIABLES, "OPGRAFT_"}, page.name


@needs_docs
def test_the_page_names_every_command_and_option():
    text = (DOCS / "command-line.md").read_text()
    for name, command in typer.main.get_command(cli.app).commands.items():
        section = re.search(rf"^## opgraft {name}$(.*?)(?=^## |\Z)", text, re.M | re.S)
        assert section, f"docs/command-line.md should have the heading: opgraft {name}"
        for option in (opt for parameter in command.params for opt in parameter.opts):
            assert not option.startswith("--") or f"`{option}" in section[1], option


@needs_docs
def test_the_reference_and_the_pages_name_every_public_name():
    text = "".join(page.read_text() for page in PAGES)
    for name in og.__all__:
        assert re.search(rf"\b(og|opgraft)\.{name}\b", text), name
    reference = (DOCS / "reference.md").read_text()
    for name in og.__all__:
        if inspect.isfunction(getattr(og, name)):
            assert f"::: opgraft.{name}\n" in reference


@needs_docs
def test_the_page_of_layers_lists_all_of_them():
    listed = {row[0] for row in cells("layers.md")} & {f"`og.layers.{n}`" for n in layer_names()}
    assert listed == {f"`og.layers.{name}`" for name in layer_names()}


@needs_docs
def test_the_page_of_benchmarks_has_the_rows_that_are_printed():
    source = (ROOT / "benchmarks" / "dispatch.py").read_text()
    rows = [row[0].strip("`") for row in cells("benchmarks.md") if row[0].startswith("`")]
    assert len(rows) >= 4
    assert [row for row in rows if f'"{row}"' not in source] == []


@needs_docs
def test_every_page_is_in_the_navigation():
    navigation = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(navigation) == sorted(page.name for page in DOCS.glob("*.md"))


@needs_docs
def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / (link.partition("#")[0] or page.name)).exists(), link


# ---- docstrings --------------------------------------------------------------------


def layer_names() -> list[str]:
    found = inspect.getmembers(og.layers, inspect.isclass)
    return [name for name, kind in found if hasattr(keras.layers, name)]


def described(function) -> str:
    """A docstring, with that of the function whose arguments it shares."""
    text = inspect.getdoc(function) or ""
    shared = re.search(r"(?:Other )?[Aa]rguments, and errors, are those of `(\w+)`", text)
    return text + (inspect.getdoc(getattr(og, shared[1])) if shared else "")


FUNCTIONS = [name for name in og.__all__ if inspect.isfunction(getattr(og, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_has_the_sections_it_needs(name):
    function = getattr(og, name)
    text, signature = described(function), inspect.signature(function)
    summary = text.splitlines()[0]
    assert summary.endswith((".", ":"))
    assert len(summary) <= 100
    for parameter in signature.parameters if len(signature.parameters) > 1 else ():
        assert re.search(rf"^ {{4}}(\w+, )*{parameter}(, \w+)*:", text, re.M), parameter
    if signature.return_annotation is inspect.Signature.empty:
        assert "\nReturns:\n" in text
    if name not in ("show_config", "version"):
        assert "\nRaises:\n" in text


@pytest.mark.parametrize("name", sorted(set(og.__all__) - set(FUNCTIONS)))
def test_a_public_value_or_module_says_what_it_is(name):
    text = inspect.getdoc(getattr(og, name))
    assert text.splitlines()[0].endswith(".")


@pytest.mark.parametrize("name", layer_names())
def test_a_layer_says_what_it_adds_to_that_of_keras(name):
    text = inspect.getdoc(getattr(og.layers, name))
    assert text.startswith(f"`keras.layers.{name}` under an arithmetic.")
    assert re.search(r"^Args:\n {4}arithmetic: ", text, re.M)


# ---- who may import whom -----------------------------------------------------------

SOURCE = ROOT / "src" / "opgraft"
FRAMEWORKS = {"tensorflow", "jax", "torch"}
COMMAND_LINE = {
    *("approximation", "approximation_report"),
    *("cli", "cli_approximate", "cli_inspect", "cli_support", "cli_verify"),
    *("data", "interrupts", "models", "picture", "report", "training"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(body, everywhere: bool):
    """Statements that run on import, or, `everywhere`, those of functions as well."""
    for node in body:
        if is_for_types(node) and not everywhere:
            continue
        yield node
        if everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from statements(ast.iter_child_nodes(node), everywhere)


def imports(name: str, *, everywhere: bool = False) -> set[str]:
    """Full names of the modules that a module names in its import statements."""
    found: set[str] = set()
    for node in statements(ast.parse(MODULES[name].read_text()).body, everywhere):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative imports are not used here"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in MODULES else node.module for each in inner}
    return found


def loads(name: str) -> set[str]:
    """Modules of ours that importing a module loads: those it names, and their packages.

    A package that the module itself lies in is being loaded already.
    """
    found = set()
    for target in imports(name) & set(MODULES):
        parts = target.split(".")
        packages = {".".join(parts[:end]) for end in range(2, len(parts) + 1)}
        found |= {each for each in packages if not f"{name}.".startswith(f"{each}.")}
    return found - {name}


def reached(name: str) -> set[str]:
    """All modules of ours that are loaded with one."""
    found, waiting = set(), {name}
    while waiting:
        current = waiting.pop()
        found.add(current)
        waiting |= loads(current) - found
    return found


@pytest.mark.parametrize("name", MODULES)
def test_frameworks_are_imported_in_their_rooms_only(name):
    named = {target.partition(".")[0] for target in imports(name, everywhere=True)}
    if not name.startswith("opgraft.backends"):
        assert not named & FRAMEWORKS


@pytest.mark.parametrize("name", MODULES)
def test_the_library_does_not_import_the_command_line(name):
    if name.removeprefix("opgraft.") not in COMMAND_LINE:
        lines = {f"opgraft.{each}" for each in COMMAND_LINE}
        assert not imports(name, everywhere=True) & lines


def test_the_reference_reaches_no_native_code():
    assert "opgraft.spec" in reached("opgraft.reference")
    assert not [each for each in reached("opgraft.reference") if each.startswith("opgraft.native")]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in MODULES
        if re.match(
            r"opgraft\.(values|errors|environment|spec|gradients|quantizers|reference|native)\b",
            name,
        )
    ],
)
def test_the_lower_rooms_import_no_framework(name):
    outside = {each.partition(".")[0] for module in reached(name) for each in imports(module)}
    assert not outside & {"keras", *FRAMEWORKS}


def test_there_are_no_import_cycles():
    graph = {name: loads(name) for name in MODULES}
    while graph:
        free = {name for name, needs in graph.items() if not needs & set(graph)}
        assert free, f"these modules import each other: {', '.join(sorted(graph))}"
        graph = {name: needs for name, needs in graph.items() if name not in free}


def test_files_are_short():
    package = [path for path in SOURCE.rglob("*") if path.suffix in (".c", ".py")]
    core = [path for path in (ROOT / "core").rglob("*") if path.suffix in (".c", ".cc", ".h")]
    tests = list(Path(__file__).parent.rglob("*.py"))
    assert len(package) > 30
    for paths, limit in ((package, 400), (core, 400), (tests, 600)):
        lengths = {str(path): len(path.read_text().splitlines()) for path in paths}
        assert {name: lines for name, lines in lengths.items() if lines >= limit} == {}

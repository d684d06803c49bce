"""The command `opgraft verify`: what it reads, what it hands on, and what it shows."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reports
from typer.testing import CliRunner

from opgraft import cli, verification

PROTOTYPE = (
    "void custom_matmul(const float *a, const float *b, int batch_size, int in_size, int out_size, "
    "float *out)"
)


@pytest.fixture
def verified(monkeypatch):
    """What the verifier was asked, a list of (arithmetic, options); it reports `answer`."""

    class Calls(list):
        answer = reports.report()

    calls = Calls()

    def verify(arithmetic, **options):
        calls.append((arithmetic, options))
        return calls.answer

    monkeypatch.setattr(verification, "verify", verify, raising=False)
    return calls


def opgraft(*arguments):
    """Run the command line here: the exit code, standard output and standard error."""
    result = CliRunner().invoke(cli.app, ["verify", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def refused(*arguments):
    """Run a command that must be refused before it verifies, and give its message as one line."""
    code, out, error = opgraft(*arguments)
    assert code == 2
    assert out == ""
    return " ".join(error.split())


def symbol_of(calls):
    ((arithmetic, _),) = calls
    (symbol,) = arithmetic.product.symbols
    return symbol


# ---- what is verified ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "symbol"), [("matmul", "custom_matmul"), ("conv2d", "custom_conv2d")]
)
def test_the_shipped_examples_have_names(name, symbol, verified):
    code, out, _ = opgraft(name)
    assert code == 0
    assert symbol_of(verified).symbol == symbol
    assert Path(symbol_of(verified).library) == cli.EXAMPLES / f"{name}.c"
    assert verified[0][1] == {"large": False}
    assert out.rstrip().endswith("PASSED in 12.3 s")


def test_a_file_of_the_same_name_goes_first(verified, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("matmul").write_text("no library")
    assert "error: matmul: A library does not say what arguments" in refused("matmul")
    assert verified == []


def test_a_source_with_several_functions_needs_a_symbol(verified, compile_c):
    text = (cli.EXAMPLES / "matmul.c").read_text()
    path = compile_c(text + text[text.index("void") :].replace("custom_", "other_"), "[two].c")
    message = refused(path)
    assert "defines 2 functions (custom_matmul, other_matmul); name one" in message
    assert "'other_matmull'. Did you mean 'other_matmul'" in refused(f"{path}:other_matmull")
    assert opgraft(f"{path}:other_matmul")[0] == 0
    assert symbol_of(verified).symbol == "other_matmul"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler called cc")
def test_a_library_needs_its_prototype(verified, tmp_path):
    library = tmp_path / "matmul.so"
    source = cli.EXAMPLES / "matmul.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    assert "Paste the prototype: --prototype 'void f(const float *a, …)'." in refused(library)
    other = PROTOTYPE.replace("custom_", "custum_")
    assert "does not declare custom_matmul" in refused(
        f"{library}:custom_matmul", "--prototype", other
    )
    assert opgraft(library, "--prototype", PROTOTYPE)[0] == 0
    assert Path(symbol_of(verified).library) == library


def test_roles_flags_and_thread_safety_reach_the_function(verified, compile_c):
    text = (cli.EXAMPLES / "matmul.c").read_text().replace("in_size", "foo").replace("*a,", "*bar,")
    text = text.replace("const float *a_row = a ", "const float *a_row = bar ")
    path = compile_c("#ifdef WANTED\n" + text + "#endif\n", "roles.c")
    assert "defines 0 functions" in refused(path)
    given = (path, "--flags", "-O1 -DWANTED")
    assert "'bar'" in refused(*given)
    assert opgraft(*given, "--role", "foo=k", "--role", "bar=input", "--not-thread-safe")[0] == 0
    symbol = symbol_of(verified)
    assert symbol.thread_safe is False
    assert "input:f32*" in symbol.plan
    assert opgraft(*given, "--role", "foo=k")[0] == 2


def test_limits_reach_the_verifier(verified):
    given = ("--limit", "0.25", "--large", "--time-limit", "2.5", "--memory-limit", "300")
    assert opgraft("matmul", *given)[0] == 0
    ((_, options),) = verified
    assert options == {
        "limit": 0.25, "large": True, "time_limit": 2.5, "memory_limit": 300 * 2**20,
    }  # fmt: skip


# ---- what is refused -----------------------------------------------------------------


def test_nothing_named_is_an_error_that_says_what_to_give(verified):
    message = refused()
    assert message == (
        "error: Name what to verify: opgraft verify FILE[:SYMBOL]. FILE is a .c source or a .so "
        "library, or one of the examples shipped with opgraft: matmul, conv2d."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--role", "weights"), "error: --role weights: write NAME=ROLE, such as --role"),
        (("--role", "=kernel"), "error: --role =kernel: write NAME=ROLE"),
        (("--role", "a=input", "--role", "a=kernel"), "a has the role input already"),
        (("--role", "zzz=input"), "zzz"),
        (("--limit", "-0.5"), "error: --limit -0.5: it must be 0 or more."),
        (("--limit", "nan"), "error: --limit nan: it must be 0 or more."),
        (("--time-limit", "0"), "error: --time-limit 0: it must be a number above 0."),
        (("--memory-limit", "inf"), "error: --memory-limit inf: it must be a number above 0."),
        (("--flags", "-D'x"), "error: --flags -D'x: No closing quotation. Write them as for a"),
        (("--flags", "-fno-such-flag"), "does not compile"),
        (("--prototype", "void f("), "void f("),
    ],
)
def test_bad_options_are_refused_before_the_run(options, message, verified):
    assert message in refused("matmul", *options)
    assert verified == []


def test_a_file_that_is_not_there_is_refused(verified):
    assert "error: gone.c: There is no file gone.c. Check the path." in refused("gone.c")
    assert verified == []


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_what_cannot_be_written_is_refused_before_the_run(option, verified, tmp_path):
    (tmp_path / "file").touch()
    message = refused("matmul", option, tmp_path / "file" / "out")
    assert "Cannot write into the folder" in message
    assert f"error: {option} {tmp_path}: this is a folder. Give the path of a file." in refused(
        "matmul", option, tmp_path
    )
    assert verified == []


def test_a_file_that_must_not_be_changed_is_refused_before_the_run(verified, tmp_path, monkeypatch):
    def locked(*_, **__):
        raise PermissionError(13, "Permission denied")

    page = tmp_path / "page.html"
    page.write_text("older")
    monkeypatch.setattr(Path, "open", locked)
    message = refused("matmul", "--html", page)
    assert f"--html {page}: cannot be written: Permission denied. Choose another file." in message
    assert verified == []


def test_trying_a_file_leaves_it_as_it_was(verified, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("older")
    refused("matmul", "--html", page, "--json", tmp_path)
    assert page.read_text() == "older"
    refused("matmul", "--html", tmp_path / "other.html", "--json", tmp_path)
    assert not (tmp_path / "other.html").exists()


def test_a_disk_that_fills_up_is_told_after_the_table(verified, monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    code, out, error = opgraft("matmul", "--html", tmp_path / "page.html")
    assert code == 2
    assert "PASSED" in out
    assert "page.html cannot be written: No space left on device." in " ".join(error.split())


# ---- what is shown -------------------------------------------------------------------


@pytest.mark.parametrize("state", [False, None])
@pytest.mark.parametrize("name", ["forward", "gradient", "contract"])
def test_the_exit_code_is_0_only_if_all_passed(name, state, verified):
    verified.answer = reports.report(**{name: state}, findings=("is NaN or infinite",))
    code, out, _ = opgraft("matmul")
    assert code == 1
    assert "What is wrong:" in out
    assert "is NaN or infinite" in out
    assert "FAILED in 12.3 s" in out


def test_files_are_written_and_named(verified, tmp_path):
    verified.answer = reports.report("kernel of /tmp/[bold]x.c", forward=False)
    page, figures = tmp_path / "new" / "page.html", tmp_path / "new" / "all.json"
    code, out, _ = opgraft("matmul", "--html", page, "--json", figures)
    assert code == 1
    assert json.loads(figures.read_text()) == verified.answer.to_dict()
    assert page.read_text().strip() == verified.answer.to_html().strip()
    assert "kernel of /tmp/[bold]x.c" in out
    told = re.sub(r"\s", "", out)
    assert f"Saved{figures}" in told
    assert f"Saved{page}" in told


def test_json_can_have_standard_output_to_itself(verified, tmp_path, capfd, monkeypatch):
    answer = reports.report(gradient=None)
    monkeypatch.setattr(
        verification, "verify", lambda *_, **__: os.write(1, b"a C function prints\n") and answer
    )
    code, out, error = opgraft("matmul", "--json", "-", "--html", tmp_path / "page.html")
    assert code == 1
    assert json.loads(out) == answer.to_dict()
    assert "FAILED in 12.3 s" in error
    assert "Saved" in error
    printed = capfd.readouterr()
    assert "a C function prints" not in printed.out
    assert "a C function prints" in printed.err


def test_no_progress_is_shown_where_nobody_watches(verified):
    _, out, error = opgraft("matmul")
    assert "Verifying" not in out + error
    assert error == ""


def test_a_terminal_that_lacks_a_character_stops_nothing(tmp_path):
    """In a process of its own, as only `main` sets standard output up."""
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import reports\n"
        "from opgraft import cli, verification\n"
        "answer = reports.report('kernel \\udc80 of 180°', forward=False)\n"
        "verification.verify = lambda *_, **__: answer\n"
        "cli.main()"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), "verify", "matmul"]
    settings = {**os.environ, "PYTHONIOENCODING": "ascii", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, env=settings)
    assert done.returncode == 1, done.stderr.decode()
    assert "kernel \\udc80 of 180\\xb0" in done.stdout.decode("ascii")
    assert "XX agrees with its meaning" in done.stdout.decode("ascii")


def test_help_names_the_examples():
    result = CliRunner().invoke(cli.app, ["verify", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "matmul or conv2d, the examples shipped with opgraft" in text
    assert "exit code 0 if all passes, else 1" in text

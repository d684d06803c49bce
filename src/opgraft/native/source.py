"""C sources: compile once, cache by content; find a function's prototype in one."""

import contextlib
import difflib
import fcntl
import functools
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from opgraft import environment
from opgraft.errors import CompileError, LibraryError, PrototypeError

# What stands before the body of a function: a return type, a name, its parameters.
_HEADER = re.compile(r"([^()]*[\s\*])([A-Za-z_]\w*)\s*\(([^()]*)\)")


def is_source(path: str | os.PathLike) -> bool:
    return pathlib.Path(path).suffix == ".c"


def compile_source(path: str | os.PathLike, flags: tuple[str, ...]) -> str:
    """Compile a C source to a shared object in the cache; return the object's name there.

    The name is a hash of the preprocessed text (so a changed header counts),
    the compiler's version and the flags: the same content is compiled once,
    whoever asks for it at the same time. A damaged object is made anew.

    Raises:
        CompileError: with the whole output of the compiler.
    """
    command = [*_compiler(), *flags]
    text = _run([*command, "-E", "-P", str(path)], path)
    identity = "\0".join([text, _version(tuple(_compiler())), *flags])
    name = hashlib.sha256(identity.encode()).hexdigest()
    folder = environment.make_cache_folder()
    with _locked(folder / f"{name}.lock"):
        if not _is_whole(folder, name):
            _compile(command, path, folder, name)
    return name


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """One compilation of an object at a time, in any thread and process; a killed one lets go."""
    try:
        file = path.open("w")
    except OSError as why:
        raise environment.error(
            "OPGRAFT_CACHE_DIR", f"the cache '{path.parent}' cannot be written: {why.strerror}"
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_whole(folder: pathlib.Path, name: str) -> bool:
    """Whether the object is the one that was compiled: its own hash stands beside it."""
    try:
        content = (folder / f"{name}.so").read_bytes()
        return (folder / f"{name}.sha256").read_text() == hashlib.sha256(content).hexdigest()
    except OSError:
        return False


def _compile(command: list[str], path, folder: pathlib.Path, name: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        part = pathlib.Path(scratch) / "object.so"
        # Bsymbolic: a helper that happens to be named as one of libm's must stay the user's own.
        link = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", str(part), str(path), "-lm"]
        _run([*command, *link], path)
        if not part.exists():
            raise CompileError(
                f"the C compiler '{shlex.join(command)}' said nothing and wrote nothing for "
                f"'{path}'; check OPGRAFT_CC and CC"
            )
        digest = part.with_suffix(".sha256")
        digest.write_text(hashlib.sha256(part.read_bytes()).hexdigest())
        digest.replace(folder / f"{name}.sha256")
        part.replace(folder / f"{name}.so")  # whole or not at all


def _compiler() -> list[str]:
    command = environment.compiler()
    if shutil.which(command[0]) is None:
        raise CompileError(
            f"the C compiler '{command[0]}' is not found. Install one (Debian: apt-get install "
            "gcc), name one in OPGRAFT_CC, or compile the source yourself and give the .so"
        )
    return command


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    return subprocess.run([*command, "--version"], capture_output=True, text=True).stdout


def _run(command: list[str], path: str | os.PathLike) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise CompileError(
            f"'{path}' does not compile:\n  {shlex.join(command)}\n{done.stderr}{done.stdout}"
        )
    return done.stdout


def find_prototype(
    path: str | os.PathLike, symbol: str | None = None, flags: tuple[str, ...] = ()
) -> str:
    """The prototype of `symbol` in a C source, as text.

    Without a symbol, the source must define exactly one function that is not static.
    `flags` are those that it is compiled with.

    Raises:
        PrototypeError: there is no such function (near names are given), or
            several and none was named.
    """
    found = {name: text for name, text, static in _functions(path, flags) if symbol or not static}
    if symbol is None and len(found) == 1:
        return next(iter(found.values()))
    if symbol in found:
        return found[symbol]
    if symbol is None:
        raise PrototypeError(
            f"'{path}' defines {len(found)} functions ({', '.join(found) or 'none'}); "
            f"name one ({path}:SYMBOL), or give its prototype"
        )
    raise PrototypeError(f"'{path}' has no function '{symbol}'. {near_names(symbol, found)}")


def near_names(wanted: str, names) -> str:
    """A sentence that helps to find the name that was meant; ends without a full stop."""
    near = difflib.get_close_matches(wanted, names, 3, 0.5)
    if near:
        return f"Did you mean {' or '.join(repr(name) for name in near)}?"
    return f"It has: {', '.join(sorted(names)) or 'none'}"


def _functions(path: str | os.PathLike, flags: tuple[str, ...]) -> list[tuple[str, str, bool]]:
    """(name, prototype, whether static) of every function that a source defines."""
    if not os.path.isfile(path):
        raise LibraryError(f"'{path}' cannot be read: there is no such file")
    functions = []
    for part in re.split(r";|(?<=\{\})", _without_bodies(_own_text(path, flags))):
        match = _HEADER.fullmatch(part.removesuffix("{}").strip())
        if match is None or not part.endswith("{}"):
            continue
        returns, name, parameters = (" ".join(text.split()) for text in match.groups())
        words = [w for w in returns.split() if w not in ("static", "inline", "extern")]
        prototype = f"{' '.join(words)} {name}({parameters})"
        functions.append((name, prototype, "static" in returns.split()))
    return functions


def _own_text(path: str | os.PathLike, flags: tuple[str, ...]) -> str:
    """The preprocessed text of the file itself, without what it includes."""
    lines, main, current = [], None, None
    for line in _run([*_compiler(), *flags, "-E", str(path)], path).splitlines():
        marker = re.match(r'#\s*\d+\s+("(?:[^"\\]|\\.)*")', line)
        if marker:
            current = marker[1]
            main = main or current  # the first names the file itself, as the compiler writes it
        elif current == main:
            lines.append(line)
    return "\n".join(lines)


def _without_bodies(text: str) -> str:
    """`text` with string and character literals gone and every outermost {...} left as {}."""
    text = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', "", text)
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", text)
    kept, depth = [], 0
    for piece in re.split(r"([{}])", text):
        depth -= piece == "}"
        if depth == 0:
            kept.append(piece)
        depth += piece == "{"
    return "".join(kept)

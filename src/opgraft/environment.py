"""The environment variables, all of them. An unknown value is an error."""

import functools
import os
import pathlib
import shlex

from opgraft.errors import SettingError

VARIABLES = {
    "OPGRAFT_NUM_THREADS": "threads of the core; a positive number, default: TensorFlow's "
    "intra-op setting, else one per processor",
    "OPGRAFT_VARIANT": "which processor variant of the core runs: auto (default), or one of "
    "those that `opgraft config` lists",
    "OPGRAFT_CACHE_DIR": "where compiled C sources and private copies of libraries lie, "
    "default: $XDG_CACHE_HOME/opgraft or ~/.cache/opgraft",
    "OPGRAFT_LIBRARY_PATH": "folders, separated by colons, to look in for a library that is no "
    "longer where a saved model says",
    "OPGRAFT_CC": "the C compiler, default: $CC or cc",
    "OPGRAFT_TABLE_ENGINE": "how products by a table are computed, to the same bits: auto "
    "(default), expanded, rows or low_rank",
    "OPGRAFT_CORE": "the file of another build of the core, such as one for the sanitizers",
}


MAX_THREADS = 4096


def error(name: str, why: str) -> SettingError:
    return SettingError(f"environment variable {name}: {why}. It sets {VARIABLES[name]}")


def check() -> None:
    """Raise for a variable of our prefix that does not exist: a misspelt one would be ignored.

    Raises:
        SettingError: naming the variable and listing those that exist.
    """
    for name in os.environ:
        if name.startswith("OPGRAFT_") and name not in VARIABLES:
            raise SettingError(
                f"environment variable {name} is not known. Those that are: {', '.join(VARIABLES)}"
            )
    num_threads()
    cache_folder()
    library_path()
    table_engine()


def num_threads() -> int | None:
    """OPGRAFT_NUM_THREADS, or None where it is not set."""
    text = os.environ.get("OPGRAFT_NUM_THREADS")
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= MAX_THREADS:
        raise error("OPGRAFT_NUM_THREADS", f"'{text}' is not a number from 1 to {MAX_THREADS}")
    return int(text)


# The first are numbered as in the core, which does not know the last.
TABLE_ENGINES = ("auto", "expanded", "rows", "low_rank")
AUTO, LOW_RANK = TABLE_ENGINES.index("auto"), TABLE_ENGINES.index("low_rank")


def table_engine() -> int:
    """OPGRAFT_TABLE_ENGINE, as an index of `TABLE_ENGINES`."""
    text = os.environ.get("OPGRAFT_TABLE_ENGINE", "auto")
    if text not in TABLE_ENGINES:
        raise error("OPGRAFT_TABLE_ENGINE", f"'{text}' is not one of {', '.join(TABLE_ENGINES)}")
    return TABLE_ENGINES.index(text)


def variant() -> str:
    return os.environ.get("OPGRAFT_VARIANT", "auto")


@functools.cache
def cache_folder() -> pathlib.Path:
    """OPGRAFT_CACHE_DIR, or the user's cache folder; one answer for the life of the process."""
    text = os.environ.get("OPGRAFT_CACHE_DIR")
    if text is None:
        base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        return pathlib.Path(base) / "opgraft"
    folder = pathlib.Path(text).absolute()
    if not text or (folder.exists() and not folder.is_dir()):
        raise error("OPGRAFT_CACHE_DIR", f"'{text}' is not a folder")
    return folder


def core_path(built: pathlib.Path) -> pathlib.Path:
    """OPGRAFT_CORE, or the core that was built with the package."""
    text = os.environ.get("OPGRAFT_CORE")
    if text is None:
        return built
    if not os.path.isfile(text):
        raise error("OPGRAFT_CORE", f"'{text}' is not a file")
    return pathlib.Path(text).absolute()


def make_cache_folder() -> pathlib.Path:
    """The cache folder, made where it does not exist yet.

    Raises:
        SettingError: it cannot be made.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise error(
            "OPGRAFT_CACHE_DIR", f"the cache '{folder}' cannot be made: {why.strerror}"
        ) from None
    return folder


def library_path() -> str:
    """OPGRAFT_LIBRARY_PATH; every folder in it must exist."""
    text = os.environ.get("OPGRAFT_LIBRARY_PATH", "")
    for folder in filter(None, text.split(":")):
        if not os.path.isdir(folder):
            raise error("OPGRAFT_LIBRARY_PATH", f"'{folder}' is not a folder")
    return text


def compiler() -> list[str]:
    """The C compiler's command: OPGRAFT_CC, CC or cc."""
    text = os.environ.get("OPGRAFT_CC") or os.environ.get("CC") or "cc"
    try:
        command = shlex.split(text)
    except ValueError as why:
        raise error("OPGRAFT_CC", f"'{text}' is not a command: {why}") from None
    if not command:
        raise error("OPGRAFT_CC", f"'{text}' names no command")
    return command

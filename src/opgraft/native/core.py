"""The compiled core, through ctypes. Nothing here knows a framework."""

import ctypes
import functools
import os
import pathlib

from opgraft import environment
from opgraft.errors import LibraryError

ABI_VERSION = 3
FOLDER = pathlib.Path(__file__).parent
CORE_PATH = environment.core_path(FOLDER / "libopgraft_core.so")
TENSORFLOW_PATH = FOLDER / "libopgraft_tensorflow.so"

_MESSAGE_SIZE = 2048


class FunctionSpec(ctypes.Structure):
    """`og_function_spec`: where a user's function lives and how it is called."""

    _fields_ = [
        ("library", ctypes.c_char_p),
        ("hash", ctypes.c_char_p),
        ("binary", ctypes.c_char_p),
        ("symbol", ctypes.c_char_p),
        ("plan", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("thread_safe", ctypes.c_int32),
    ]


_TEXT_FUNCTIONS = (
    "og_cpu_features", "og_variants", "og_variant", "og_roles", "og_process_token",
    "og_function_kind", "og_dtype_name",
)  # fmt: skip


def _declare(core: ctypes.CDLL) -> None:
    for name in _TEXT_FUNCTIONS:
        getattr(core, name).restype = ctypes.c_char_p
    core.og_function_kind.argtypes = [ctypes.c_void_p]
    core.og_loaded_libraries.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    core.og_loaded_libraries.restype = ctypes.c_size_t


@functools.cache
def core() -> ctypes.CDLL:
    """The core, configured from the environment on first use.

    Raises:
        LibraryError: the core was not built or belongs to another version.
    """
    if not CORE_PATH.exists():
        raise LibraryError(
            f"the compiled core '{CORE_PATH}' is missing: this copy of opgraft was not built. "
            "Install it with `pip install .` from the source, and do not import it from src/"
        )
    try:
        library = ctypes.CDLL(str(CORE_PATH), mode=ctypes.RTLD_GLOBAL)
        found = library.og_abi_version()
    except (OSError, AttributeError) as error:
        raise LibraryError(
            f"'{CORE_PATH}' is not a core of opgraft: {error}. Reinstall opgraft, or correct "
            "OPGRAFT_CORE if it is set"
        ) from None
    if found != ABI_VERSION:
        raise LibraryError(
            f"the compiled core '{CORE_PATH}' has ABI {found}, this package needs {ABI_VERSION}. "
            "Reinstall opgraft: `pip install --force-reinstall .`"
        )
    _declare(library)
    cache = environment.make_cache_folder()
    library.og_set_paths(os.fsencode(cache), os.fsencode(environment.library_path()))
    library.og_set_threads(environment.num_threads() or 0)
    _select_variant(library)
    return library


def _select_variant(library: ctypes.CDLL) -> None:
    message = ctypes.create_string_buffer(_MESSAGE_SIZE)
    if library.og_select_variant(os.fsencode(environment.variant()), message):
        raise environment.error("OPGRAFT_VARIANT", message.value.decode())


def hash_file(path: str) -> str:
    """SHA-256 of a file, in hexadecimal."""
    hex_digits = ctypes.create_string_buffer(65)
    _checked(core().og_hash_file, os.fsencode(path), hex_digits)
    return hex_digits.value.decode()


def open_function(spec: FunctionSpec) -> str:
    """Load the function and return its kind: matmul, conv2d or scalar."""
    function = ctypes.c_void_p()
    _checked(core().og_function_open, ctypes.byref(spec), ctypes.byref(function))
    return core().og_function_kind(function).decode()


def loaded_libraries() -> list[str]:
    """One `hash path` for each user library in this process."""
    size = core().og_loaded_libraries(None, 0)
    buffer = ctypes.create_string_buffer(size + 1)
    core().og_loaded_libraries(buffer, size + 1)
    return os.fsdecode(buffer.value).splitlines()


def process_token() -> str:
    """Names this process; a function that lives in no file is valid only under it."""
    return core().og_process_token().decode()


ENGINES = ("expanded", "rows", "depthwise", "in order", "low_rank")  # as the core counts them


def runs() -> dict[str, int]:
    """How often each engine of products by a table has run in this process."""
    counts = (ctypes.c_int64 * len(ENGINES))()
    core().og_runs(counts)
    return dict(zip(ENGINES, counts, strict=True))


def roles() -> list[str]:
    """The names that a parameter can have in a plan."""
    return core().og_roles().decode().split()


def set_threads(threads: int) -> None:
    core().og_set_threads(threads)


def _checked(function, *arguments) -> None:
    message = ctypes.create_string_buffer(_MESSAGE_SIZE)
    if function(*arguments, message):
        raise LibraryError(os.fsdecode(message.value))


__all__ = [
    "ABI_VERSION", "CORE_PATH", "ENGINES", "TENSORFLOW_PATH", "FunctionSpec", "core", "hash_file",
    "loaded_libraries", "open_function", "process_token", "roles", "runs", "set_threads",
]  # fmt: skip

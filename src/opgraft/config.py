"""What runs here: versions, processor, variant, threads, libraries."""

import importlib.metadata
import platform

from opgraft import environment
from opgraft.backends import backend
from opgraft.native import core


def version() -> str:
    """The installed version of the package."""
    try:
        return importlib.metadata.version("opgraft")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


def describe() -> dict[str, str]:
    """The facts that `show_config` prints, by name."""
    import keras

    library = core.core()
    framework = backend()
    libraries = core.loaded_libraries()
    return {
        "opgraft": version(),
        "core ABI": str(library.og_abi_version()),
        "core": str(core.CORE_PATH),
        "processor": platform.machine(),
        "CPU features": library.og_cpu_features().decode() or "none known",
        "variant": f"{library.og_variant().decode()} (of: {library.og_variants().decode()})",
        "products by a table": f"{environment.TABLE_ENGINES[environment.table_engine()]} "
        f"(of: {' '.join(environment.TABLE_ENGINES)})",
        "threads": str(framework.set_threads_from_framework()),
        "TensorFlow": framework.VERSION,
        "Keras": keras.__version__,
        "Python": platform.python_version(),
        "cache": str(environment.cache_folder()),
        "compiler": " ".join(environment.compiler()),
        "libraries loaded": "\n".join(libraries) or "none",
    }


def show_config() -> None:
    """Print version, core ABI, CPU features, variant, threads, TensorFlow and loaded libraries."""
    facts = describe()
    width = max(map(len, facts))
    for name, value in facts.items():
        indented = value.replace("\n", "\n" + " " * (width + 2))
        print(f"{name:<{width}}  {indented}")

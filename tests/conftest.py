"""Fixtures that several test files share."""

import pathlib

import hypothesis
import pytest

import opgraft as og

# The same examples every time, however slow the machine is at the moment.
hypothesis.settings.register_profile("opgraft", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("opgraft")

TESTS = pathlib.Path(__file__).parent
KERNELS = pathlib.Path(og.__file__).parent / "kernels"


@pytest.fixture(scope="session")
def c_matmul():
    """A float matrix product in C."""
    return og.c_function(KERNELS / "matmul.c")


@pytest.fixture(scope="session")
def c_conv2d():
    """A float convolution in C, with strides and with padding as text."""
    return og.c_function(KERNELS / "conv2d.c")


@pytest.fixture(scope="session")
def c_both(c_matmul, c_conv2d):
    """Both, which serve every contraction together."""
    return c_matmul | c_conv2d


@pytest.fixture(scope="session")
def c_conv2d_full():
    """A float convolution in C with every parameter there is."""
    return og.c_function(TESTS / "c" / "conv2d_full.c")


@pytest.fixture(scope="session")
def c_mul():
    """One float product in C."""
    return og.c_function(TESTS / "c" / "scalar.c", "float mul(float a, float b)")


@pytest.fixture
def compile_c(tmp_path):
    """A function: the text of a C source -> the path of a file that holds it."""

    def write(text: str, name: str = "function.c") -> pathlib.Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of data sets beside the repository."""
    folder = TESTS.parent.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder ../shared/data is not there")
    return folder

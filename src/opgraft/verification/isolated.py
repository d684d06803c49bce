"""Running Python code where it cannot harm: a copy of this process, or a new one."""

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence

from opgraft import values
from opgraft.arithmetic import Arithmetic
from opgraft.verification.cases import Case
from opgraft.verification.findings import Check
from opgraft.verification.gradient import GradientChecks, Outcome

_said: list[int] = []  # in the copy: where `say` writes


def say(text: str) -> None:
    """In the copy: tell the parent what is tried now."""
    os.write(_said[0], f"{text}\n".encode())


def run(
    function: Callable[[], None], seconds: float, memory: int, hear: Callable[[str], None]
) -> str:
    """Run a function in a copy of this process; "" if it came back, else how it ended.

    The copy may use Python and NumPy, but not TensorFlow, whose threads it does not have.
    What it has written with `say` is heard line by line.
    """
    reads, writes = os.pipe()
    with warnings.catch_warnings():  # that there are threads: the copy uses none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(reads)
        _said[:] = [writes]
        _in_copy(function, memory)
    os.close(writes)
    try:
        return _watch(pid, reads, time.monotonic() + seconds, hear)
    finally:
        os.close(reads)


def _in_copy(function: Callable[[], None], memory: int) -> None:
    code = 1
    try:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
        function()
        code = 0
    except MemoryError:
        code = 77
    except BaseException as error:
        say(f"!{type(error).__name__}: {error}".replace("\n", " "))
    finally:
        os._exit(code)


def _watch(pid: int, reads: int, deadline: float, hear: Callable[[str], None]) -> str:
    error, rest = "", b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "timed out"
        if not select.select([reads], [], [], min(left, 0.2))[0]:
            continue
        block = os.read(reads, 65536)
        if not block:
            break
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if text.startswith("!"):
                error = text[1:]
            else:
                hear(text)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 77:
        return "takes too much memory"
    if code < 0:
        return signal.Signals(-code).name
    return error or (f"exit({code})" if code else "")


# ---- a new process -------------------------------------------------------------------------


def gradient(arithmetic: Arithmetic, cases: Sequence[Case], seconds: float) -> Outcome:
    """The gradient checks of an arithmetic whose gradient is C code, in a new process."""
    with tempfile.TemporaryDirectory(prefix="opgraft-verify-") as folder:
        asked, answered = (os.path.join(folder, name) for name in ("asked", "answered"))
        with open(asked, "wb") as file:
            pickle.dump((values.to_json(arithmetic), list(cases)), file)
        code = "import sys; from opgraft.verification.isolated import answer; answer(*sys.argv[1:])"
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, asked, answered], capture_output=True, text=True,
                timeout=seconds + 60, check=False,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            message = f"the gradient's C function does not come back within {seconds:g} s"
            return _failed("terminates", message, "the gradient never returns")
        if done.returncode < 0:
            name = signal.Signals(-done.returncode).name
            return _failed("runs", f"the gradient's C function ends in {name}",
                           f"the gradient crashes ({name})")  # fmt: skip
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return _failed("runs", lines[-1] if lines else f"exit code {done.returncode}",
                           "the gradient fails")  # fmt: skip
        with open(answered, "rb") as file:
            return pickle.load(file)


def _failed(name: str, message: str, finding: str) -> Outcome:
    return Outcome((Check(name, False, message),), (finding,))


def answer(asked: str, answered: str) -> None:
    """What the new process does."""
    with open(asked, "rb") as file:
        text, cases = pickle.load(file)
    found = GradientChecks(values.from_json(text), cases).run()
    with open(answered, "wb") as file:
        pickle.dump(found, file)

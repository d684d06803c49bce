"""Running code where it cannot harm: in a copy of this process, or in a new one."""

import contextlib
import dataclasses
import faulthandler
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
from opgraft.spec import MatMul
from opgraft.verification import vjp_calls
from opgraft.verification.cases import Case, like
from opgraft.verification.findings import Check
from opgraft.verification.gradient import GradientChecks
from opgraft.verification.parts import Outcome, not_run

TIMED_OUT, OUT_OF_MEMORY = "timed out", "out of memory"
_DONE = "."  # what the copy says when it has come to its end
_FAILED = "?"  # and before the reason why it has not

_EVERY = 3  # of the cases: each is composed of many operations
_said: list[int] = []  # in the copy: where `say` writes


def say(text: str) -> None:
    """In the copy: tell the parent what is tried now."""
    os.write(_said[0], (text.replace("\n", " ") + "\n").encode())


def finding(ended: str) -> str:
    """How a copy ended, as a diagnosis."""
    known = {TIMED_OUT: "never returns", OUT_OF_MEMORY: "takes too much memory"}
    return known.get(ended, f"crashes ({ended})")


def run(
    function: Callable[[], None], seconds: float, memory: int, hear: Callable[[str], None]
) -> str:
    """Run a function in a copy of this process; "" if it came back, else how it ended.

    It may take `seconds` from each line that it says to the next.

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
        return _watch(pid, reads, seconds, hear)
    except BaseException:
        _kill(pid)
        raise
    finally:
        os.close(reads)


def _in_copy(function: Callable[[], None], memory: int) -> None:
    faulthandler.disable()  # how it ends is in the report, and nothing to print
    try:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
        function()
        say(_DONE)
    except MemoryError:
        say(_FAILED + OUT_OF_MEMORY)
    except BaseException as error:
        say(f"{_FAILED}{type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _watch(pid: int, reads: int, seconds: float, hear: Callable[[str], None]) -> str:
    end, rest = "", b""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            _kill(pid)
            return TIMED_OUT
        if not select.select([reads], [], [], min(left, 0.2))[0]:
            continue
        block = os.read(reads, 65536)
        if not block:
            break
        deadline = time.monotonic() + seconds
        *lines, rest = (rest + block).split(b"\n")
        for line in (each.decode(errors="replace") for each in lines):
            if line == _DONE or line.startswith(_FAILED):
                end = line
            else:
                hear(line)
    code = _exit_code(pid, deadline)
    if code is None:
        return TIMED_OUT
    if end == _DONE:
        return ""
    return end.removeprefix(_FAILED) or exit_name(code)


def _exit_code(pid: int, deadline: float) -> int | None:
    """Of a copy that has closed the pipe, which it may do long before its end."""
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    _kill(pid)
    return None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def exit_name(code: int) -> str:
    """An exit code in words: the signal, or `exit(3)`."""
    return signal.Signals(-code).name if code < 0 else f"exit({code})"


def environment() -> dict[str, str]:
    """For a new Python that imports what this one imports."""
    path = os.pathsep.join(entry or os.curdir for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}


# ---- a gradient in a new process -------------------------------------------------------------


class Gradient:
    """The gradient checks of an arithmetic whose gradient is C code, in a process of their own.

    It starts with the `with`, and runs beside this one until `outcome` is asked for.
    """

    def __init__(
        self, arithmetic: Arithmetic, cases: Sequence[Case], limit: float | None, seconds: float
    ) -> None:
        matrices = [case for case in like(MatMul()) if case not in cases]
        self._question = (values.to_json(arithmetic), [*matrices, *list(cases)[::_EVERY]], limit)
        self._seconds = seconds * 3 + 120  # for the start and all cases

    def __enter__(self) -> "Gradient":
        self._folder = tempfile.TemporaryDirectory(prefix="opgraft-verify-")
        asked, self._answered = (os.path.join(self._folder.name, n) for n in ("asked", "answered"))
        with open(asked, "wb") as file:
            pickle.dump(self._question, file)
        code = "import sys; from opgraft.verification.isolated import answer; answer(*sys.argv[1:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, asked, self._answered], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def outcome(self) -> tuple[Outcome, bool]:
        """What was found, and whether the gradient may be called in this process."""
        try:
            said = self._process.communicate(timeout=self._seconds)[1]
        except subprocess.TimeoutExpired:
            message = f"the gradient's C function does not come back within {self._seconds:g} s"
            return _failed("terminates", message, "the gradient never returns"), False
        code = self._process.returncode
        if code:
            lines = [line for line in said.splitlines() if line.strip()]
            message = lines[-1] if lines and code > 0 else exit_name(code)
            return _failed(
                "runs", f"the process that calls the gradient ends: {message}",
                f"the gradient crashes ({exit_name(code)})",
            ), False  # fmt: skip
        with open(self._answered, "rb") as file:
            return pickle.load(file)


def _failed(name: str, message: str, found: str) -> Outcome:
    return Outcome((Check(name, False, message),), (found,))


def answer(asked: str, answered: str) -> None:
    """What the new process does."""
    with open(asked, "rb") as file:
        text, cases, limit = pickle.load(file)
    arithmetic = values.from_json(text)
    calls = [vjp_calls.check(symbol) for symbol in arithmetic.gradient.symbols]
    findings = tuple(finding for _, own in calls for finding in own)
    safe = not any(finding.startswith("writes") for finding in findings)
    if safe:
        found = GradientChecks(arithmetic, cases, limit=limit).run()
    else:
        found = Outcome(tuple(not_run("vector-Jacobian product")))
    found = dataclasses.replace(
        found,
        findings=(*findings, *found.findings),
        contract=tuple(check for checks, _ in calls for check in checks),
    )
    with open(answered, "wb") as file:
        pickle.dump((found, safe), file)

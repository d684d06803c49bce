"""Starting, asking and ending the process of `child`, whatever becomes of it."""

import contextlib
import dataclasses
import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from opgraft.verification import child

_CONNECTION = 3  # the file descriptor of the child's end
_TICK = 0.002  # seconds between two looks at the memory of a process that is at work
# Address space is no memory: stacks and arenas of many threads, and maps that nobody touches,
# take none. Only so many times the limit of it shows a function that never stops allocating.
_ADDRESS_SPACE = 16
_GROWTH = 32 << 20  # bytes more than at half-time: what would end it is the memory, not the time


class EndedError(Exception):
    """The process did not answer.

    Attributes:
        crashed: the signal that ended it, such as "SIGSEGV", or "exit(3)" if it ended itself.
        timed_out, out_of_memory: it was ended for this.
        said: the last line that it wrote to its standard error.
    """

    def __init__(
        self,
        crashed: str = "",
        *,
        timed_out: bool = False,
        out_of_memory: bool = False,
        said: str = "",
    ) -> None:
        super().__init__(crashed or ("timed out" if timed_out else "out of memory"))
        self.crashed, self.said = crashed, said
        self.timed_out, self.out_of_memory = timed_out, out_of_memory


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of one request: seconds, bytes of memory beyond what the process starts with, and bytes
    of address space that the request itself maps."""

    seconds: float
    memory: int
    mapped: int = 0


class ChildProcess:
    """A running child. `spawn` starts a new Python, `fork` a copy of this process."""

    def __init__(self, pid: int, connection: socket.socket, said: int) -> None:
        self.pid, self._connection, self._said = pid, connection, said
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)
        self._code: int | None = None  # once it has ended
        self.closed = False
        self._base = self._memory()

    @classmethod
    def spawn(cls) -> "ChildProcess":
        ours, theirs, said, says = _channels()
        actions = [
            (os.POSIX_SPAWN_DUP2, says, 2),
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), _CONNECTION),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        ]
        command = [sys.executable, "-I", "-S", child.__file__, str(_CONNECTION)]
        try:
            pid = os.posix_spawn(
                sys.executable, command, _environment(), file_actions=actions, setpgroup=0
            )
        except OSError:
            ours.close()
            os.close(said)
            raise
        finally:
            theirs.close()
            os.close(says)
        return cls(pid, ours, said)

    @classmethod
    def fork(cls) -> "ChildProcess":
        ours, theirs, said, says = _channels()
        with warnings.catch_warnings():  # that there are threads: the child uses none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _serve_forked(theirs.fileno(), says)
        theirs.close()
        os.close(says)
        return cls(pid, ours, said)

    def ask(
        self, head: dict[str, Any], blocks: Sequence[Any], limits: Limits
    ) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to one request.

        Raises:
            EndedError: there is none; the process has ended.
        """
        try:
            self._connection.settimeout(max(limits.seconds, _TICK))
            self._connection.sendall(child.pack(head, blocks))
            # Only now: neither the time nor the memory of a large request is the function's.
            watch = _Watch(limits, self._taken)
            return child.unpack(lambda size: self._read(size, watch))
        except TimeoutError:
            raise self._ended(timed_out=True) from None
        except MemoryError:
            raise self._ended(out_of_memory=True) from None
        except (OSError, EOFError):
            raise self._ended() from None
        except (ValueError, KeyError, TypeError):  # no message: its memory is damaged
            raise self._ended(crashed="garbled answer") from None
        except KeyboardInterrupt:
            self.close()
            raise

    def _read(self, size: int, watch: "_Watch") -> bytes:
        data = bytearray()
        while len(data) < size:
            if not self._poller.poll(_TICK * 1000):
                watch.look()
                continue
            block = self._connection.recv(min(size - len(data), 1 << 20))
            if not block:
                raise EOFError
            data += block
        return bytes(data)

    def _taken(self) -> tuple[int, int]:
        """Bytes of address space, and of memory in use, beyond what it started with."""
        space, resident = (now - then for now, then in zip(self._memory(), self._base, strict=True))
        return space, resident

    def _memory(self) -> tuple[int, int]:
        """Bytes of address space, and of memory in use."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                space, resident = file.read().split()[:2]
        except (OSError, ValueError):
            return 0, 0
        return int(space) * child.PAGE, int(resident) * child.PAGE

    def _ended(
        self, *, crashed: str = "", timed_out: bool = False, out_of_memory: bool = False
    ) -> EndedError:
        killed = bool(crashed) or timed_out or out_of_memory
        code = self._end(kill=killed)
        if not killed:
            out_of_memory = code == -signal.SIGKILL  # by the system: nobody else does
            crashed = "" if out_of_memory else _name(code)
        said = self._last_line()
        self.close()
        return EndedError(crashed, timed_out=timed_out, out_of_memory=out_of_memory, said=said)

    def _end(self, *, kill: bool) -> int:
        """Let the process end, and end what it has started; its exit code."""
        if self._code is None:
            if kill or not self._ends_by_itself():
                _kill(self.pid)
            try:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                _kill(self.pid)  # its group, as long as its number is not given away
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # somebody else waits for every process
                self._code = 0
        return self._code

    def _ends_by_itself(self) -> bool:
        how = os.WEXITED | os.WNOWAIT | os.WNOHANG
        for _ in range(500):
            try:
                if os.waitid(os.P_PID, self.pid, how):
                    return True
            except ChildProcessError:
                return True
            time.sleep(_TICK)
        return False

    def _last_line(self) -> str:
        try:
            text = os.read(self._said, 1 << 16).decode(errors="replace")
        except OSError:  # it said nothing
            return ""
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")

    def close(self) -> None:
        """End the process and give back everything that it held; once is enough."""
        if self.closed:
            return
        self.closed = True
        self._end(kill=True)
        self._connection.close()
        os.close(self._said)


class _Watch:
    """Of one request: raises TimeoutError or MemoryError when a limit is reached."""

    def __init__(self, limits: Limits, taken: Callable[[], tuple[int, int]]) -> None:
        self._limits, self._taken = limits, taken
        self._start = time.monotonic()
        self._at_half: int | None = None  # bytes of memory when half of the time had passed

    def look(self) -> None:
        limits, seconds = self._limits, time.monotonic() - self._start
        space, resident = self._taken()
        if resident > limits.memory or space - limits.mapped > _ADDRESS_SPACE * limits.memory:
            raise MemoryError
        if self._at_half is None and seconds > limits.seconds / 2:
            self._at_half = resident
        if seconds > limits.seconds:
            is_growing = self._at_half is not None and resident > self._at_half + _GROWTH
            raise MemoryError if is_growing else TimeoutError


def _environment() -> dict[str, str]:
    """Without malloc's short cut, which hands out what was freed last as it was."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    ours = "glibc.malloc.tcache_count=0"
    return {**os.environ, "GLIBC_TUNABLES": f"{tunables}:{ours}" if tunables else ours}


def _channels() -> tuple[socket.socket, socket.socket, int, int]:
    """Both ends of the connection, and of the child's standard error, which never blocks."""
    ours, theirs = socket.socketpair()
    said, says = os.pipe()
    os.set_blocking(said, False)
    os.set_blocking(says, False)
    return ours, theirs, said, says


def _serve_forked(connection: int, says: int) -> None:
    """What a forked process does instead of returning. It keeps no file of its parent's."""
    try:
        gc.disable()
        faulthandler.disable()
        os.setpgid(0, 0)
        os.dup2(says, 2)
        os.dup2(connection, _CONNECTION)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        os.closerange(_CONNECTION + 1, os.sysconf("SC_OPEN_MAX"))
        child.serve(_CONNECTION)
    finally:
        os._exit(1)


def _kill(pid: int) -> None:
    """The process and all that it started, which share its group."""
    for how in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            how(pid, signal.SIGKILL)


def _name(code: int) -> str:
    if code >= 0:
        return f"exit({code})"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"

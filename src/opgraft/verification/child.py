"""The process in which a user's function is called, so that it can take no other with it.

It runs as a script that imports the standard library alone, and so starts in a
few hundredths of a second; for a function that lies in no file, a forked process
calls `serve`. It answers one request at a time over one socket, until the other
end closes. A message is the length of a JSON head, the head, and raw bytes.

What a function does to memory shows in how its buffers lie: between margins of a
known byte, and these between pages that nobody may touch.
"""

import array
import ctypes
import json
import mmap
import os
import resource
import select
import signal
import struct
import sys
import threading
import time

PAGE = mmap.PAGESIZE
MARGIN = b"\xa5"
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # has a name since Python 3.11
_M_PERTURB = -6
_HEAP_BYTES = (0x4B, 0xCD, 0x4E, 0xCB, 0x4D, 0xCE)
_PROT_NONE = 0

TYPES = {
    "f32": ctypes.c_float, "f64": ctypes.c_double, "i8": ctypes.c_int8, "i16": ctypes.c_int16,
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "u8": ctypes.c_uint8, "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32, "u64": ctypes.c_uint64,
}  # fmt: skip
_CODES = {"f32": "f", "f64": "d", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B",
          "u16": "H", "u32": "I", "u64": "Q"}  # fmt: skip


# ---- messages ------------------------------------------------------------------------


def pack(head, blocks):
    """A message as bytes: a dict that JSON can hold, and blocks of raw bytes."""
    text = json.dumps({**head, "sizes": [len(block) for block in blocks]}).encode()
    return b"".join([struct.pack("<Q", len(text)), text, *blocks])


def unpack(read, read_block=None):
    """The (head, blocks) of the next message; `read(n)` gives the next n bytes."""
    (size,) = struct.unpack("<Q", read(8))
    head = json.loads(read(size))
    return head, [(read_block or read)(length) for length in head.pop("sizes")]


def _receive(connection):
    """The next message. Its blocks lie in memory of their own, not in the heap, where a function
    that reads what it was not given could find its operands."""

    def fill(memory):
        rest = memoryview(memory)
        while rest:
            got = os.readv(connection, [rest])
            if not got:
                os._exit(0)
            rest = rest[got:]
        return memory

    return unpack(
        lambda size: fill(bytearray(size)), lambda size: fill(mmap.mmap(-1, size) if size else b"")
    )


def _write(connection, data):
    view = memoryview(data)
    while view:
        view = view[os.write(connection, view) :]


# ---- memory --------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _protect(address, size, how):
    if size and _libc.mprotect(address, size, how):
        raise OSError(ctypes.get_errno(), "mprotect failed")


class Buffer:
    """`size` bytes between `front` and `back` pages of margin and `guard` pages on each side.

    They begin at the beginning of a page or, if `flush`, end at the end of one;
    without a margin there, the next byte is one that nobody may touch. `patches`
    are (offset, index of a block); what they do not cover is zero.
    """

    def __init__(self, layout, blocks):
        self.size = layout["size"]
        guard = layout["guard"] * PAGE
        self.first = guard + layout["front"] * PAGE + (-self.size % PAGE if layout["flush"] else 0)
        self.last = self.first + self.size
        self.inner = guard, -(-self.last // PAGE) * PAGE + layout["back"] * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self.memory = mmap.mmap(-1, self.inner[1] + guard, flags)
        self.patches = [(self.first + at, blocks[index]) for at, index in layout["patches"]]
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.address = base + self.first
        for start, end in self.margins():
            self.memory[start:end] = MARGIN * (end - start)
        self.fill()
        _protect(base, guard, _PROT_NONE)
        _protect(base + self.inner[1], guard, _PROT_NONE)
        if layout["readonly"]:
            _protect(base + guard, self.inner[1] - guard, mmap.PROT_READ)

    def margins(self):
        return (self.inner[0], self.first), (self.last, self.inner[1])

    def fill(self):
        for at, block in self.patches:
            self.memory[at : at + len(block)] = block

    def content(self):
        return self.memory[self.first : self.last]

    def look(self):
        """What was changed: its content, the margin before it, the margin behind it."""
        before, behind = (
            self.memory[start:end] != MARGIN * (end - start) for start, end in self.margins()
        )
        changed = any(
            memoryview(self.memory)[at : at + len(block)] != memoryview(block)
            for at, block in self.patches
        )
        return {"changed": changed, "before": before, "behind": behind}


# ---- calls ---------------------------------------------------------------------------


def _float_environment():
    """A function that restores what C promises: round to nearest, denormal numbers kept.

    Loading a library that was linked with -ffast-math changes it for this thread.
    """
    try:
        fesetenv = ctypes.CDLL("libm.so.6").fesetenv
    except (OSError, AttributeError):
        return lambda: None
    fesetenv.argtypes = [ctypes.c_void_p]
    return lambda: fesetenv(-1)  # FE_DFL_ENV


_reset_floats = _float_environment()


def _load(request):
    """The function; its arguments have the types of the plan."""
    returns, *words = request["plan"].split()
    kinds = [word.split(":")[1] for word in words]
    arguments = [
        ctypes.c_char_p if kind == "text" else TYPES.get(kind, ctypes.c_void_p) for kind in kinds
    ]
    prototype = ctypes.CFUNCTYPE(TYPES.get(returns), *arguments)
    _disturb(request["seed"], request["heap"])
    if request["address"]:
        return prototype(request["address"])
    return prototype((request["symbol"], _library(request["files"])))


def _library(files):
    """The first that can be opened: as the core does it, and again from where it came from."""
    for path in files[:-1]:
        try:
            return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        except OSError:
            pass
    return ctypes.CDLL(files[-1], mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)


def _disturb(seed, heap):
    """What a function must not rely on: random numbers, and a heap that holds nothing but zeros."""
    _libc.srand(seed)
    _libc.srandom(seed)
    _libc.srand48(seed)
    if heap and hasattr(_libc, "mallopt"):  # malloc fills what it gives with large numbers
        _libc.mallopt(_M_PERTURB, 0xFF ^ _HEAP_BYTES[seed % len(_HEAP_BYTES)])


def _peak():
    """The most bytes of memory that this process has had in use."""
    with open("/proc/self/status", "rb") as file:
        status = file.read()
    return int(status.split(b"VmHWM:", 1)[1].split()[0]) * 1024


class Call:
    def __init__(self, function, request, blocks):
        self.function = function
        self.buffers = [Buffer(layout, blocks) for layout in request["buffers"]]
        self.arguments = [self._argument(each) for each in request["arguments"]]
        self.output = self.buffers[request["output"]]
        self.returned, self.rounds, self.varies = 0, 0, False

    def _argument(self, value):
        if isinstance(value, dict):
            return self.buffers[value["buffer"]].address
        return value.encode() if isinstance(value, str) else value

    def run(self):
        _reset_floats()
        self.returned = self.function(*self.arguments) or self.returned

    def repeat(self, until):
        """Call it again and again; `varies` if not every call gives the same."""
        self.run()
        first = self.output.content()
        while self.rounds < 3 or time.monotonic() < until:
            self.rounds += 1
            for buffer in self.buffers:
                buffer.fill()
            self.run()
            if self.output.content() != first:
                self.varies = True
                break

    def reply(self):
        return {
            "returned": self.returned,
            "buffers": [buffer.look() for buffer in self.buffers],
            "varies": self.varies,
            "peak": _peak(),
        }


def _call(function, request, blocks):
    call = Call(function, request, blocks)
    call.run()
    return call.reply(), [call.output.content()]


def _together(function, request, blocks):
    """Several calls at once, each from a thread of its own, for so many seconds."""
    calls = [Call(function, each, blocks) for each in request["calls"]]
    until = time.monotonic() + request["seconds"]
    threads = [threading.Thread(target=call.repeat, args=(until,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"calls": [call.reply() for call in calls]}, [call.output.content() for call in calls]


def _scalar(function, request, blocks):
    """Two arrays element by element."""
    left, right = (memoryview(block).cast(_CODES[request["operand"]]) for block in blocks)
    _reset_floats()
    results = array.array(_CODES[request["result"]], map(function, left, right))
    return {"returned": 0}, [results.tobytes()]


_ACTIONS = {"call": _call, "together": _together, "scalar": _scalar}


# ---- the process ---------------------------------------------------------------------


def _end_with_parent(connection):
    """The other end closes when its process ends, however it ends; also during a call."""
    poller = select.poll()
    poller.register(connection, 0)  # hang-ups alone
    poller.poll()
    os._exit(0)


def _prepare(connection):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out, this process is the one to end
    except OSError:
        pass
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()


def serve(connection):
    """Answer requests on this file descriptor until its other end closes; never returns."""
    _prepare(connection)
    function = None
    while True:
        request, blocks = _receive(connection)
        reply, results = {}, []
        try:
            if request["do"] == "load":
                function, reply = _load(request), {"peak": _peak()}
            else:
                reply, results = _ACTIONS[request["do"]](function, request, blocks)
        except Exception as error:
            reply, results = {"error": f"{type(error).__name__}: {error}"}, []
        _write(connection, pack(reply, results))


if __name__ == "__main__":
    serve(int(sys.argv[1]))

"""Calls of a user's function in a process of their own, and what each did.

A crash, an endless loop, or memory without end is an outcome here, not an
accident. The process is started at the first call and again after it ended.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from opgraft.products.c_function import CSymbol
from opgraft.verification import child
from opgraft.verification.calls import (
    BUFFERS,
    C_NAMES,
    DTYPES,
    OPERANDS,
    Call,
    Operand,
    Outcome,
    Parameter,
    Placement,
    Sparse,
    adds,
    bits_of,
    combined,
    dependent,
    parameters,
    poisoned,
    same_bits,
)
from opgraft.verification.process import ChildProcess, EndedError, Limits

_STARTING = 60.0  # seconds for a process to start and to load a library
_PAGES = 2  # of margin, at least
_ANOTHER_ORDER = (2, 1, 0, 1, 2, 0)  # of the three contents of an output
_PAIRS = 4096  # of numbers in one request, to which the time limit applies


class _NotLoadedError(Exception):
    """The function cannot be had in another process."""


class Sandbox:
    """Calls one function in a process of its own. Use it in a `with`, from one thread.

    Args:
        symbol: the function.
        time_limit: seconds for one call.
        memory_limit: bytes that the process may take beyond what it starts with.

    Attributes:
        is_stuck: a plain call has not returned in time, or taken too much memory.
    """

    def __init__(
        self, symbol: CSymbol, *, time_limit: float = 10.0, memory_limit: int = 4 << 30
    ) -> None:
        self.symbol, self.time_limit, self.memory_limit = symbol, time_limit, memory_limit
        self.parameters = parameters(symbol)
        self._process: ChildProcess | None = None
        self.is_stuck = False
        self._starts, self._disturbed = 0, False
        self._idle = 0  # bytes of memory that it takes without a call
        self._reads_output = False  # beyond doubt

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.restart()

    def restart(self, *, disturbed: bool = False) -> None:
        """End the process; the next call runs in a fresh one.

        In a disturbed one, memory from malloc holds large numbers, other ones each time.
        """
        self._disturbed = disturbed
        if self._process is not None:
            self._process.close()
        self._process = None

    # ---- calls

    def run(self, call: Call) -> Outcome:
        """Three calls with different contents of the output, and what they say together."""
        outcomes = []
        for number in range(3):
            outcome = self.once(call, number)
            if not outcome.ended:
                self.is_stuck |= outcome.timed_out or outcome.out_of_memory
                return outcome
            outcomes.append(outcome)
        differing = dependent(outcomes)
        found = combined(outcomes)
        if not differing.any():
            return found
        if not self._is_by_output(call, outcomes):
            return dataclasses.replace(found, varies=True)
        return dataclasses.replace(
            found, reads_output=True, adds_to_output=adds(outcomes, differing)
        )

    def _is_by_output(self, call: Call, outcomes: Sequence[Outcome]) -> bool:
        """Whether it is what was in the output that makes the three outcomes differ.

        They must come again in another order and, once, in a process whose heap tells nothing:
        else a function that reads what malloc left there may seem to read its output.
        """
        if not all(
            same_bits(self.once(call, number).output, outcomes[number].output)
            for number in _ANOTHER_ORDER
        ):
            return False
        if not self._reads_output:
            self.restart(disturbed=True)
            again = [self.once(call, number) for number in range(len(outcomes))]
            self.restart()
            self._reads_output = all(o.ended for o in again) and bool(dependent(again).any())
        return self._reads_output

    def once(
        self, call: Call, poison: int = 0, place: Placement | None = None, patience: float = 1.0
    ) -> Outcome:
        """One call whose output begins with that poison; `patience` multiplies the time limit."""
        request, blocks = self._request(call, poison, place or Placement())
        mapped = sum(
            layout["size"] + 2 * layout["guard"] * child.PAGE for layout in request["buffers"]
        )
        answer = self._ask({"do": "call", **request}, blocks, patience, mapped)
        return answer if isinstance(answer, Outcome) else self._outcome(call, poison, *answer)

    def run_together(self, calls: Sequence[Call], seconds: float = 0.3) -> list[Outcome]:
        """Every call again and again for so long, at least three times, each from its own thread.

        `varies` where not every round gave the same.
        """
        requests: list[dict[str, Any]] = []
        blocks: list[bytes] = []
        for call in calls:
            request, own = self._request(call, 0, Placement(), first_block=len(blocks))
            requests.append(request)
            blocks += own
        head = {"do": "together", "calls": requests, "seconds": seconds}
        answer = self._ask(head, blocks, 1 + seconds / self.time_limit)
        if isinstance(answer, Outcome):
            return [answer] * len(calls)
        parts = zip(calls, answer[0]["calls"], answer[1], strict=True)
        return [self._outcome(call, 0, reply, [block]) for call, reply, block in parts]

    def scalar(self, left: np.ndarray, right: np.ndarray, patience: float = 1.0) -> Outcome:
        """A scalar product, element by element; the output has the function's result type."""
        operand, result = self.parameters[0].kind, self.symbol.plan.split()[0]
        flat = [np.ascontiguousarray(each, DTYPES[operand]).ravel() for each in (left, right)]
        head = {"do": "scalar", "operand": operand, "result": result}
        parts = []
        for start in range(0, flat[0].size, _PAIRS):
            blocks = [each[start : start + _PAIRS].tobytes() for each in flat]
            answer = self._ask(head, blocks, patience)
            if isinstance(answer, Outcome):
                self.is_stuck |= answer.timed_out or answer.out_of_memory
                return answer
            parts.append(np.frombuffer(answer[1][0], DTYPES[result]))
        output = np.concatenate(parts) if parts else np.empty(0, DTYPES[result])
        return Outcome(output.reshape(np.shape(left)))

    def describe(self, call: Call) -> str:
        """The call as text, such as `mm(a=float[3x5], b=float[5x4], m=3, k=5, n=4, out=...)`."""
        shapes = (call.left.shape, call.right.shape, call.shape)
        sizes = dict(zip(BUFFERS, ("x".join(map(str, shape)) for shape in shapes), strict=True))
        words = []
        for p, value in zip(self.parameters, self._arguments(call), strict=True):
            if isinstance(value, dict):
                role = BUFFERS[value["buffer"]]
                value = f"{C_NAMES[p.kind.rstrip('*')]}[{sizes[role]}]"
            elif isinstance(value, str):
                value = f'"{value}"'
            words.append(f"{p.name}={value:g}" if isinstance(value, float) else f"{p.name}={value}")
        return f"{self.symbol.symbol}({', '.join(words)})"

    # ---- requests and answers

    def _arguments(self, call: Call) -> list[Any]:
        values = [_argument(parameter, call) for parameter in self.parameters]
        if call.exchanged:
            names = [parameter.name for parameter in self.parameters]
            first, second = (names.index(name) for name in call.exchanged)
            values[first], values[second] = values[second], values[first]
        return values

    def _request(
        self, call: Call, poison: int, place: Placement, first_block: int = 0
    ) -> tuple[dict[str, Any], list[bytes]]:
        operand = np.dtype(call.as_dtype or self.symbol.operand_dtype)
        result = np.dtype(call.as_dtype or self.symbol.output_dtype)
        contents: tuple[Operand, ...] = (
            call.left.astype(operand),
            call.right.astype(operand),
            poisoned(call, result, poison),
        )
        layouts = [
            _layout(role, content, place, first_block + index)
            for index, (role, content) in enumerate(zip(BUFFERS, contents, strict=True))
        ]
        blocks = [(c.tail if isinstance(c, Sparse) else c).tobytes() for c in contents]
        request = {"arguments": self._arguments(call), "buffers": layouts, "output": 2}
        return request, blocks

    def _ask(
        self, head: dict[str, Any], blocks: Sequence[bytes], patience: float = 1.0, mapped: int = 0
    ) -> tuple[dict[str, Any], list[bytes]] | Outcome:
        limits = Limits(self.time_limit * patience, self.memory_limit, mapped)
        try:
            reply, results = self._started().ask(head, blocks, limits)
        except _NotLoadedError as why:
            return Outcome(refused=str(why))
        except EndedError as end:
            return Outcome(
                crashed=end.crashed, timed_out=end.timed_out, out_of_memory=end.out_of_memory,
                said=end.said,
            )  # fmt: skip
        return Outcome(refused=reply["error"]) if "error" in reply else (reply, results)

    def _started(self) -> ChildProcess:
        if self._process is None or self._process.closed:
            symbol = self.symbol
            self._starts += 1
            self._process = ChildProcess.fork() if symbol.address else ChildProcess.spawn()
            files = [str(symbol.compiled_file)]
            files += [] if symbol.binary else [symbol.library]
            head = {
                "do": "load", "plan": symbol.plan, "symbol": symbol.symbol, "files": files,
                "address": symbol.address, "seed": self._starts,
                "heap": self._disturbed,
            }  # fmt: skip
            limits = Limits(max(_STARTING, self.time_limit), self.memory_limit)
            reply, _ = self._process.ask(head, [], limits)
            if "error" in reply:
                raise _NotLoadedError(f"it cannot be loaded: {reply['error']}")
            self._idle = reply["peak"]
        return self._process

    def _outcome(
        self, call: Call, poison: int, reply: dict[str, Any], results: Sequence[bytes]
    ) -> Outcome:
        dtype = np.dtype(call.as_dtype or self.symbol.output_dtype)
        output = np.frombuffer(results[0], dtype).reshape(call.shape)
        looks = dict(zip(BUFFERS, reply["buffers"], strict=True))
        return Outcome(
            output,
            returned=reply["returned"],
            unwritten=bits_of(output) == bits_of(poisoned(call, dtype, poison)),
            overrun=next((role for role in BUFFERS[::-1] if looks[role]["behind"]), ""),
            underrun=next((role for role in BUFFERS[::-1] if looks[role]["before"]), ""),
            modified=tuple(role for role in OPERANDS if looks[role]["changed"]),
            varies=reply["varies"],
            peak=reply["peak"] - self._idle,
        )


def _argument(parameter: Parameter, call: Call) -> Any:
    if parameter.role in BUFFERS:
        return {"buffer": BUFFERS.index(parameter.role)}
    if parameter.kind == "text":
        return call.padding
    value = call.numbers[parameter.role]
    return float(value) if parameter.dtype.kind == "f" else int(value)


def _layout(role: str, content: Operand, place: Placement, block: int) -> dict[str, Any]:
    size = math.prod(content.shape) * content.dtype.itemsize
    layout = {"size": size, "flush": False, "readonly": role in place.readonly}
    if isinstance(content, Sparse):  # a negative index of 32 bits leads to where nobody may go
        guard = 1 + -(-size // child.PAGE)
        at = size - content.tail.nbytes
        return {**layout, "front": 0, "back": 0, "guard": guard, "patches": [[at, block]]}
    margin = max(_PAGES, -(-size // child.PAGE))  # also if it takes the elements for wider ones
    flush = place.flush and role in OPERANDS
    guarded = role in place.guarded
    return {
        **layout,
        "flush": flush,
        "front": 0 if guarded and not flush else margin,
        "back": 0 if guarded and flush else margin,
        "guard": 1,
        "patches": [[0, block]],
    }

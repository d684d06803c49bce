"""How a planted mistake, or something right, is verified, and how the report on it is judged."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import opgraft as og

TESTS = pathlib.Path(__file__).parent
BROKEN, RIGHT = TESTS / "broken", TESTS / "correct"


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Random normal float32 numbers, the same for the same shape and seed."""
    return np.random.default_rng((*shape, seed)).standard_normal(shape, np.float32)


# ---- what is said of an entry ------------------------------------------------------------

Verification = tuple[Any, dict[str, Any]]  # a target, and keywords of og.verify


@dataclasses.dataclass(frozen=True)
class Planted:
    """One mistake.

    Attributes:
        name: file and mistake.
        make: gives what is verified.
        finding: what must stand in `report.findings`; `<n>` is any number. "" where the
            mistake is of no known kind: it must be caught, and given no wrong name.
        verdict: the verdict that must fail.
        also: other names that are as true.
        geometry: arguments of the convolution in which it shows, for `verify_in_an_operation`.
        slow: left to `-m slow`.
    """

    name: str
    make: Callable[[], Verification]
    finding: str
    verdict: str = "forward"
    also: tuple[str, ...] = ()
    geometry: dict[str, Any] = dataclasses.field(default_factory=dict)
    slow: bool = False

    def problem(self, report: Any) -> str:
        """What is wrong with the report on it, or ""."""
        if report.passed:
            return "missed"
        if getattr(report, self.verdict).passed:
            return f"{self.verdict} passed; found: {'; '.join(report.findings) or 'nothing'}"
        if self.finding and not any(map(self._is_due, report.findings)):
            return f"not named; found: {'; '.join(report.findings) or 'nothing'}"
        false = [f for f in report.findings if "agrees with" in f and not self._is_true(f)]
        return f"also named: {'; '.join(false)}" if false else ""

    def _is_due(self, finding: str) -> bool:
        return matches(of_convolution(self.finding), of_convolution(finding))

    def _is_true(self, finding: str) -> bool:
        """Also of the other operand, whose gradient a wrong geometry spoils too."""
        claims = (claim(name) for name in (self.finding, *self.also))
        return any(matches(one, claim(finding)) for one in claims)


@dataclasses.dataclass(frozen=True)
class Correct:
    """Something right; its attributes are those of `Planted`."""

    name: str
    make: Callable[[], Verification]
    geometry: dict[str, Any] = dataclasses.field(default_factory=dict)
    slow: bool = False

    def problem(self, report: Any) -> str:
        """What is wrong with the report on it, or ""."""
        if report.findings:
            return f"false alarm: {'; '.join(report.findings)}"
        failed = [f"{check.name}: {check.message}" for verdict in report.verdicts
                  for check in verdict.checks if check.passed is not True]  # fmt: skip
        return "" if report.passed else f"did not pass: {'; '.join(failed) or 'without a reason'}"


def claim(finding: str) -> str:
    """A finding without the operand that it is about."""
    return re.sub(r"^gradient of \w+: ", "", finding)


def of_convolution(finding: str) -> str:
    """With the operands' names of a convolution, which are others in a matrix product."""
    names = {"a": "x", "b": "kernel"}
    return re.sub("^gradient of ([ab]):", lambda m: f"gradient of {names[m[1]]}:", finding)


def matches(pattern: str, finding: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace("<n>", r"\d+"), finding) is not None


# ---- how it is verified ------------------------------------------------------------------


def verify(entry: Planted | Correct) -> Any:
    """The report on an entry."""
    target, keywords = entry.make()
    return og.verify(target, **keywords)


def verify_in_an_operation(entry: Planted | Correct) -> Any:
    """The same; of arithmetics of floating C functions, in an operation on small operands.

    The C function is examined as ever; the rest is tried on fewer cases, in half the time.
    """
    target, keywords = entry.make()
    symbols = target.product.symbols if is_c_function(target) else ()
    if symbols and all(symbol.operand_dtype.startswith("float") for symbol in symbols):
        dtype = symbols[0].operand_dtype
        if any(symbol.kind == "conv2d" for symbol in symbols):
            target, inputs = convolution(target, entry.geometry)
        else:
            target, inputs = matrix_product(target)
        keywords = keywords | {"inputs": [x.astype(dtype) for x in inputs]}
    return og.verify(target, **keywords)


def is_c_function(target: Any) -> bool:
    return isinstance(target, og.Arithmetic) and isinstance(target.product, og.products.CFunction)


def matrix_product(arithmetic: og.Arithmetic):
    def matmul(a, b):
        return og.matmul(a, b, arithmetic=arithmetic)

    return matmul, (numbers(5, 3), numbers(3, 4))


def convolution(arithmetic: og.Arithmetic, geometry: dict[str, Any]):
    options = {"strides": (2, 1), "padding": "SAME"} | geometry

    def conv2d(x, kernel):
        return og.conv2d(x, kernel, arithmetic=arithmetic, **options)

    channels = 4 // options.get("groups", 1)
    return conv2d, (numbers(2, 5, 6, 4), numbers(3, 2, channels, 2))


# ---- makers ------------------------------------------------------------------------------


def kernel(file: str, macro: str = "", prototype: str | None = None, **keywords: Any) -> Any:
    """A maker of the C function in `broken/`, compiled with the macro of its mistake."""
    options = {key: keywords.pop(key) for key in ("thread_safe",) if key in keywords}
    flags = ("-O1", "-pthread", *([f"-D{macro}"] if macro else []))

    def make() -> Verification:
        return og.c_function(BROKEN / file, prototype, flags=flags, **options), keywords

    return make


def mistakes(file: str, verdict: str, findings: dict[str, str]) -> list[Planted]:
    """One for each macro of a source."""
    stem = file.removesuffix(".c")
    return [Planted(f"{stem} {macro.lower()}", kernel(file, macro), finding, verdict)
            for macro, finding in findings.items()]  # fmt: skip


def one_in(count: int, entries: Sequence[Any]) -> list[Any]:
    """All of them, and all but one in so many left to `-m slow`."""
    return [dataclasses.replace(entry, slow=entry.slow or number % count > 0)
            for number, entry in enumerate(entries)]  # fmt: skip


def all_slow(entries: Sequence[Any]) -> list[Any]:
    return [dataclasses.replace(entry, slow=True) for entry in entries]

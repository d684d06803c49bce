"""`Multiplier`: a product of two short numbers as a table, with its facts."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.multipliers import codes, errors, packing
from opgraft.values import Value

Widths = int | tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Cost(Value):
    """What one multiplier costs in hardware; None where it is not known.

    Attributes:
        power, area, delay: numbers in the units beside them.
        power_unit, area_unit, delay_unit: such as "mW", "um2", "ns".
        technology: where the numbers hold, such as "45 nm, FreePDK".
    """

    type_name: ClassVar[str] = "cost"

    power: float | None = None
    area: float | None = None
    delay: float | None = None
    power_unit: str = "mW"
    area_unit: str = "um2"
    delay_unit: str = "ns"
    technology: str = ""


class Multiplier(Value):
    """A product of two numbers of 2 to 8 bits, given by a table of all of them.

    Make one with `from_array`, `from_file`, `from_c`, `from_function` or `from_verilog`, or
    take one of the families in `og.multipliers`.

    The table is indexed by codes: `table[a, b]`, where a code is the number's bits read as
    an unsigned number, so that row 255 of a signed 8-bit table is that of -1. The first
    operand is the activation and the second the kernel, unless `og.approximate` is asked
    to exchange them; for most published circuits that makes a difference.

    Attributes:
        table: [2^bits of the first operand, 2^bits of the second], read-only; integers, or
            float64 where results are no integers.
        signed: whether codes and results are two's complement numbers; None where the
            operands are other numbers, such as minifloats.
        values: for each operand the number that each code stands for.
        name: of the circuit, for reports.
        cost: what it costs, or None.
        notes: what was found while it was read, in sentences.

    Two are equal if their tables, and what their codes stand for, are.
    """

    type_name: ClassVar[str] = "multiplier"

    def __init__(self, table: np.ndarray, signed: bool | None, values: tuple, name: str = "",
                 cost: Cost | None = None, notes: Sequence[str] = ()) -> None:  # fmt: skip
        self.table, self.signed, self.values = table, signed, values
        self.name, self.cost, self.notes = name, cost, tuple(notes)
        for array in (table, *values):
            array.setflags(write=False)

    # ---- where it comes from -------------------------------------------------------------

    @classmethod
    def from_array(
        cls,
        table: Any,
        *,
        signed: bool | None = None,
        values: tuple[Any, Any] | None = None,
        ascending: bool = False,
        name: str = "",
        cost: Cost | None = None,
    ) -> "Multiplier":
        """From a table of all products.

        Args:
            table: [2^m, 2^n] numbers, m and n from 2 to 8, indexed by codes. Integers, or
                floats, which need not be whole numbers.
            signed: whether codes and results are two's complement numbers. None: whichever
                of the two makes the table a better product; `notes` says which.
            values: instead, the number that each code of each operand stands for: two
                arrays of 2^m and 2^n numbers. For minifloats, posits and the like.
            ascending: the table of a signed multiplier begins with the smallest number
                (-128), not with code 0.
            name: for reports.
            cost: what it costs in hardware.

        Raises:
            ArgumentError: the shape, the dtype or a value is not one that a multiplier has.
        """
        found, notes = codes.checked_table(table, signed, values, ascending)
        return cls(found.table, found.signed, found.values, _named(name), cost, notes)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike, *, signed: bool | None = None, ascending: bool = False,
        name: str = "", cost: Cost | None = None,
    ) -> "Multiplier":  # fmt: skip
        """From a file, read by how its name ends.

        - `.npy`: an array, as for `from_array`; `.npz:KEY`: one of several.
        - `.bin`: 65,536 little-endian 16-bit numbers, as TFApprox writes them.
        - `.h`: a C header with one table of 2^m lines of 2^n numbers, as AdaPT writes them.
        - `.c`, `.so`: a C function, as for `from_c`.
        - `.v`: a Verilog module, as for `from_verilog`.
        - `.txt`, `.csv`: a line "a b product" for every pair.

        Args:
            path: the file.
            signed, ascending, name, cost: as for `from_array`; the name is the file's unless
                given.

        Raises:
            ArgumentError: there is no such file, or it holds no table.
        """
        from opgraft.multipliers import files

        return files.read(path, signed=signed, ascending=ascending, name=name, cost=cost)

    @classmethod
    def from_c(
        cls, library: Any, prototype: Any = None, *, signed: bool | None = None,
        widths: Widths | None = None, flags: str | Sequence[str] = ("-O2",), name: str = "",
        cost: Cost | None = None,
    ) -> "Multiplier":  # fmt: skip
        """From a C function of two numbers, called once for every pair, in another process.

        Every signature of EvoApproxLib is one: `uint16_t f(uint8_t, uint8_t)`,
        `int16_t f(int8_t, int8_t)`, `uint64_t f(uint64_t, uint64_t)`; and signed circuits
        that are declared with unsigned types, which is found out and said in `notes`.

        Args:
            library, prototype, flags: as for `og.c_function`.
            signed: as for `from_array`; None also asks the types: signed ones (and floats)
                are taken for signed numbers, unless the name says otherwise (`mul8u_...`).
            widths: bits of both operands, or of each; None: those of the name (`mul8s_...`,
                `mul8x4u_...`) or of the types, which must then be of 8 bits.
            name, cost: for reports; the name is the function's unless given.

        Raises:
            ArgumentError: it is no function of two numbers, its width is not known, it does
                not come back, or two calls with the same numbers differ.
            LibraryError, CompileError, PrototypeError: as for `og.c_function`.
        """
        from opgraft.multipliers import circuits

        table, signed, known = circuits.tabulated_c(library, prototype, signed, widths, flags)
        return cls.from_array(table, signed=signed, name=name or known, cost=cost)

    @classmethod
    def from_function(
        cls, function: Callable[[Any, Any], Any], *, signed: bool = False, widths: Widths = 8,
        name: str = "", cost: Cost | None = None,
    ) -> "Multiplier":  # fmt: skip
        """From a Python function of two numbers (not codes), or of two arrays of them.

        Args:
            function: what is called for every pair, twice.
            signed: whether it takes two's complement numbers.
            widths: bits of both operands, or of each.
            name, cost: for reports.

        Raises:
            ArgumentError: it raises, gives no number, or gives another one the second time.
        """
        from opgraft.multipliers import circuits

        table = circuits.tabulated(function, signed, codes.both_widths(widths))
        name = name or getattr(function, "__name__", "").replace("<lambda>", "")
        return cls.from_array(table, signed=signed, name=name, cost=cost)

    @classmethod
    def from_verilog(
        cls, path: str | os.PathLike, *, module: str = "", signed: bool | None = None,
        name: str = "", cost: Cost | None = None,
    ) -> "Multiplier":  # fmt: skip
        """From a Verilog module with two inputs and one output, simulated for every pair.

        Args:
            path: the source; gates or behaviour, whatever Icarus Verilog elaborates.
            module: its name; "" where one module of the file is used by no other.
            signed, name, cost: as for `from_array`; the name is the module's unless given.

        Raises:
            ArgumentError: Icarus Verilog is not installed, the module does not elaborate, or
                has other ports.
        """
        from opgraft.multipliers import verilog

        table, known = verilog.tabulated(path, module)
        return cls.from_array(table, signed=signed, name=name or known, cost=cost)

    # ---- what it is ------------------------------------------------------------------------

    @property
    def widths(self) -> tuple[int, int]:
        """Bits of the two operands."""
        rows, columns = self.table.shape
        return rows.bit_length() - 1, columns.bit_length() - 1

    @functools.cached_property
    def exact(self) -> np.ndarray:
        """What an exact multiplier of the same operands has in its table."""
        with np.errstate(invalid="ignore"):  # 0 times infinity
            return np.multiply.outer(*self.values)

    @functools.cached_property
    def sha256(self) -> str:
        """Of the table's little-endian bytes, in the shortest type of 16 bits or more.

        The name of a circuit tells little: libraries use the same for other ones.
        """
        return hashlib.sha256(self._bytes()).hexdigest()

    def metrics(self, weights: Any = None) -> dict[str, float]:
        """Errors against the exact product.

        Args:
            weights: how often each operand is used: a pair of arrays of 2^m and 2^n
                numbers, or one of pairs [2^m, 2^n]. None: every pair equally.

        Returns:
            `MAE`, the mean absolute error; `MAE%`, of the largest result, 2^(m + n); `WCE`,
            the worst case; `WCE%`; `WCRE%`, the worst relative one; `EP%`, how often there
            is an error; `MRE%`, the mean relative error; `MSE`, the mean squared error;
            `mean_error`, the bias; `variance` of the error. As EvoApproxLib defines them:
            relative errors over the pairs whose exact product is not 0, percentages of
            2^(m + n) for signed numbers too. Where operands are no integers, MAE% and WCE%
            refer to the largest exact product. The worst cases are those of pairs that are
            used at all; pairs whose exact product is not finite count in EP% alone.

        Raises:
            ArgumentError: the weights have another shape, are negative, or all 0.
        """
        full_scale = float(2 ** sum(self.widths)) if self.signed is not None else None
        return errors.metrics(self.table, self.exact, weights, full_scale)

    @property
    def commutative(self) -> bool:
        """Whether f(a, b) = f(b, a) for all numbers; never for operands of different kinds."""
        if self.table.shape[0] != self.table.shape[1]:
            return False
        first, second = self.values
        same = np.array_equal(first, second, equal_nan=True)
        return same and np.array_equal(self.table, self.table.T, equal_nan=True)

    @property
    def zero_behaviour(self) -> errors.ZeroBehaviour:
        """What becomes of 0: whether f(0, b) and f(a, 0) are 0."""
        return errors.zero_behaviour(self.table, self.values)

    @functools.cached_property
    def rank(self) -> int:
        """Of the table as a matrix: with rank r, it is r native products of recoded operands."""
        finite = np.where(np.isfinite(self.table), self.table, 0.0)
        return int(np.linalg.matrix_rank(finite.astype(np.float64)))

    def surprises(self) -> list[str]:
        """What those who use it should know, in sentences; most important first."""
        return [*self.notes, *errors.surprises(self)]

    def with_cost(self, cost: Cost) -> "Multiplier":
        return type(self)(self.table, self.signed, self.values, self.name, cost, self.notes)

    def __call__(self, a: Any, b: Any) -> Any:
        """The product of two codes, or of two arrays of codes, which broadcast.

        Raises:
            ArgumentError: a code is negative or has more bits than the operand.
        """
        return self.table[codes.checked_codes(a, self.widths[0], "first"),
                          codes.checked_codes(b, self.widths[1], "second")]  # fmt: skip

    def __repr__(self) -> str:
        kind = {True: "signed ", False: "unsigned ", None: ""}[self.signed]
        bits = "x".join(map(str, self.widths))
        return f"<Multiplier {self.name or '(no name)'}: {kind}{bits}, {self.sha256[:12]}>"

    # ---- a value ---------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        """Copies are read-only, too, as no array is that was pickled by itself."""
        return type(self), (self.table, self.signed, self.values, self.name, self.cost, self.notes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Multiplier) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        own = () if self.signed is not None else tuple(v.tobytes() for v in self.values)
        return self.sha256, self.table.shape, self.signed, own

    def _bytes(self) -> bytes:
        return np.ascontiguousarray(self.table, codes.stored_dtype(self.table)).tobytes()

    def to_config(self) -> dict[str, Any]:
        values = None
        if self.signed is None:
            values = [[float(x) for x in each] for each in self.values]
        return {
            "type": self.type_name,
            "table": packing.packed(self.table.astype(codes.stored_dtype(self.table))),
            "shape": list(self.table.shape),
            "dtype": codes.stored_dtype(self.table),
            "signed": self.signed,
            "values": values,
            "name": self.name,
            "cost": self.cost and self.cost.to_config(),
            "notes": list(self.notes),
        }

    @classmethod
    def from_fields(cls, **fields: Any) -> "Multiplier":
        """What `to_config` wrote."""
        try:
            table = packing.unpacked(fields["table"], fields["dtype"], fields["shape"])
        except (ValueError, TypeError, KeyError) as error:
            raise ArgumentError(f"the saved multiplier's table cannot be read: {error}") from None
        signed, values = fields["signed"], fields["values"]
        found, _ = codes.checked_table(table, signed, values, ascending=False)
        return cls(found.table, signed, found.values, fields["name"], fields["cost"],
                   fields["notes"])  # fmt: skip


def _named(name: Any) -> str:
    if not isinstance(name, str):
        raise ArgumentError(f"name={name!r} must be text")
    return name


def costs_of(published: Mapping[str, Any], technology: str) -> Cost:
    """The cost among the figures that EvoApproxLib publishes with a circuit."""
    power, area, delay = (float(published[f"PDK45_{k}"]) for k in ("PWR", "AREA", "DELAY"))
    return Cost(power, area, delay, technology=technology)

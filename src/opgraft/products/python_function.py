"""A Python or NumPy function as product."""

import dataclasses
import difflib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from opgraft import functions, reference
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.functions import describe
from opgraft.products._base import Product
from opgraft.spec import Contraction, Conv2D

_GEOMETRY = ("strides", "padding", "dilations", "groups", "pad_value")
_warned: set[Callable] = set()


@dataclasses.dataclass(frozen=True)
class PythonFunction(Product):
    """A contraction by a function of NumPy arrays.

    A function of two arrays is a matrix product [m, k] x [k, n] -> [m, n], and
    serves convolutions through im2col. A function with more parameters is a
    convolution of x [batch, h, w, in] with a kernel [kh, kw, in, out]; the
    others are bound by name: strides and dilations (pairs), padding
    (((top, bottom), (left, right)), already resolved), groups, pad_value. What
    it has no parameter for is composed before it is called, or refused.
    """

    type_name: ClassVar[str] = "python_function"
    in_python: ClassVar[bool] = True

    function: Callable[..., Any]

    def to_config(self):
        name = functions.registered_name(self.function, "the Python function")
        return {"type": self.type_name, "function": name}

    @classmethod
    def from_fields(cls, function):
        return cls(functions.registered(function))

    @property
    def extra_parameters(self) -> tuple[str, ...]:
        """Names of the parameters behind the two arrays."""
        return _extra_parameters(self.function)

    def check(self, contraction: Contraction) -> None:
        if not self.extra_parameters:
            return
        if not isinstance(contraction, Conv2D):
            raise UnsupportedError(
                f"the Python function {describe(self.function)} is a convolution (it has the "
                f"parameters {', '.join(self.extra_parameters)}) and cannot serve a matrix product"
            )
        self._check_composable(contraction)

    def _check_composable(self, contraction: Conv2D) -> None:
        for name, plain in (("strides", (1, 1)), ("dilations", (1, 1))):
            if getattr(contraction, name) != plain and name not in self.extra_parameters:
                raise UnsupportedError(
                    f"the Python function {describe(self.function)} has no parameter {name}, and "
                    f"the call has {name}={getattr(contraction, name)}. Add the parameter, or give "
                    "a function of two matrices, which serves every convolution"
                )

    def compute(self, contraction: Contraction, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The contraction of two arrays, its shape and dtype checked."""
        expected: Any = contraction.output_shape(left.shape, right.shape)
        if 0 in (*expected, left.size, right.size):  # nothing to sum: as C functions, not called
            return np.zeros(expected, left.dtype)
        if not self.extra_parameters:
            result = reference.by_matmul(contraction, left, right, self._call)
        else:
            result = self._convolve(contraction, left, right)
        return _checked(result, expected, left.dtype, self.function)

    def _call(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        shape = (a.shape[0], b.shape[1])
        return _checked(self.function(a, b), shape, a.dtype, self.function)

    def _convolve(self, contraction, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        takes_padding = "padding" in self.extra_parameters
        x = reference.channels_last(contraction, x)
        pads = reference.paddings(contraction, x, kernel)
        if not takes_padding or (
            "pad_value" not in self.extra_parameters and contraction.pad_value
        ):
            x = reference.pad(x, pads, contraction.pad_value)
            pads = ((0, 0), (0, 0))
        values = {
            "strides": contraction.strides,
            "padding": pads,
            "dilations": contraction.dilations,
            "groups": contraction.groups,
            "pad_value": contraction.pad_value,
        }
        extra = {name: values[name] for name in self.extra_parameters}

        def one_group(part: np.ndarray, weights: np.ndarray) -> np.ndarray:
            return np.asarray(self.function(part, weights, **extra))

        x, kernel, groups = reference.as_grouped(contraction, x, kernel)
        if "groups" in extra:
            extra["groups"] = groups
            result = one_group(x, kernel)
        else:
            result = reference.by_groups(groups, x, kernel, one_group)
        return np.moveaxis(result, 3, 1) if contraction.channels_first else result

    def warn_once(self) -> None:
        """Say once per function what a Python function costs."""
        if self.function not in _warned:
            _warned.add(self.function)
            warnings.warn(
                f"the Python function {describe(self.function)} runs under the interpreter's lock, "
                "one call at a time: slower than a C function, and a model that uses it cannot be "
                "exported as a SavedModel. For speed and export, see og.c_function",
                stacklevel=2,
            )


def _extra_parameters(function: Callable) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built-ins and ufuncs: two arrays
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arrays = [p for p in parameters if p.kind in positional][:2]
    rest = [p for p in parameters if p not in arrays]
    named = [p.name for p in rest if p.name in _GEOMETRY]
    for p in rest:
        needed = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        misspelt = difflib.get_close_matches(p.name, _GEOMETRY, 1)  # it would be left unused
        if (needed or misspelt) and p.name not in _GEOMETRY:
            raise ArgumentError(
                f"the Python function {describe(function)} has a parameter '{p.name}', which is "
                f"not known. A matrix product takes two arrays; a convolution two arrays and any "
                f"of: {', '.join(_GEOMETRY)}"
            )
    if len(arrays) < 2:
        raise ArgumentError(
            f"the Python function {describe(function)} must take two arrays as its first parameters"
        )
    return tuple(named)


def _checked(result: Any, shape, dtype, function: Callable) -> np.ndarray:
    array = np.asarray(result)
    if array.shape != tuple(shape):
        raise ArgumentError(
            f"the Python function {describe(function)} returned the shape {array.shape} where "
            f"{tuple(shape)} is due"
        )
    return np.ascontiguousarray(_as_dtype(array, np.dtype(dtype), function))


def _as_dtype(array: np.ndarray, dtype: np.dtype, function: Callable) -> np.ndarray:
    """Floating results may be rounded to a floating dtype; all others must keep their values."""
    if "float" in array.dtype.name and "float" in dtype.name:
        return array.astype(dtype, copy=False)
    if array.dtype.kind in "biuf":
        with np.errstate(invalid="ignore"):  # a NaN becomes some integer, which is not equal
            kept = array.astype(dtype, copy=False)
        if np.array_equal(kept, array):
            return kept
    raise ArgumentError(
        f"the Python function {describe(function)} returned {array.dtype} for operands of {dtype}, "
        f"which cannot hold it; return values that {dtype} holds exactly"
    )

"""The core's public header (core/include/opgraft.h), declared for ctypes."""

import ctypes
import math

import ml_dtypes
import numpy as np

from opgraft.native import core
from opgraft.spec import Conv2D, DepthwiseConv2D

# A handle of its own: what is declared below stays apart from the package's declarations.
CORE = ctypes.CDLL(str(core.core() and core.CORE_PATH))

INVALID_ARGUMENT, UNIMPLEMENTED = 3, 12
SAME, VALID, EXPLICIT = range(3)
DTYPES = {
    "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16,
}  # fmt: skip
CODES = {name: code for code, name in enumerate(DTYPES)}
C_TYPES = {
    "f32": "float", "f64": "double", **{name: f"{'u' * (name[0] == 'u')}int{name[1:]}_t"
    for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")},
}  # fmt: skip


class Conv2DSpec(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "batch", "in_h", "in_w", "in_ch", "filter_h", "filter_w", "out_ch", "stride_h",
            "stride_w", "dilation_h", "dilation_w", "groups", "pad_top", "pad_bottom", "pad_left",
            "pad_right", "out_h", "out_w",
        )),
        ("padding", ctypes.c_int32), ("channels_first", ctypes.c_int32),
        ("pad_value", ctypes.c_double),
    ]  # fmt: skip


class MatmulSpec(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("m", "k", "n", "batches")),
        ("a_index", ctypes.c_void_p), ("b_index", ctypes.c_void_p),
        ("transpose_a", ctypes.c_int32), ("transpose_b", ctypes.c_int32),
    ]  # fmt: skip


class CopySpec(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64 * 4) for name in ("shape", "dst_stride", "src_stride")),
        *((name, ctypes.c_int) for name in ("dst_dtype", "src_dtype", "exact")),
    ]  # fmt: skip


class Call(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p), ("operand_dtype", ctypes.c_int),
        ("result_dtype", ctypes.c_int), ("scratch_bytes", ctypes.c_size_t),
        ("threads", ctypes.c_int32),
        ("table", ctypes.c_void_p),
    ]  # fmt: skip


class Table(ctypes.Structure):
    _fields_ = [
        ("entries", ctypes.c_void_p), ("entries_dtype", ctypes.c_int),
        ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in (
            "zero_a", "zero_b", "signed_codes", "keeps_padding", "engine",
        )),
        ("accumulator", ctypes.c_void_p),
    ]  # fmt: skip


class Accumulator(ctypes.Structure):
    _fields_ = [
        ("low", ctypes.c_int64), ("high", ctypes.c_int64), ("adder", ctypes.c_void_p),
    ]  # fmt: skip


class QuantizeSpec(ctypes.Structure):
    _fields_ = [
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("zero_point", "low", "high", "mask")),
    ]  # fmt: skip


P, I, L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
for _name, _result, _arguments in (
    ("og_convert", L, (P, I, L, P, I, L, L, I)),
    ("og_copy", L, (P, P, P)),
    ("og_fill", None, (P, I, ctypes.c_double, L)),
    ("og_conv2d_resolve", I, (P, P)),
    ("og_im2col", L, (P, L, L, L, P, I, P, I)),
    ("og_scalar_matmul", I, (P, I, I, P, P, L, L, L, P)),
    ("og_function_open", I, (P, P, P)),
    ("og_matmul_prepare", I, (P, P, P)),
    ("og_matmul_run", I, (P, P, P, P, P, P, P)),
    ("og_conv2d_prepare", I, (P, P, P)),
    ("og_conv2d_run", I, (P, P, P, P, P, P, P)),
    ("og_quantize", I, (P, P, L, P, P)),
    ("og_set_threads", None, (I,)),
    ("og_threads", I, ()),
    ("og_select_variant", I, (ctypes.c_char_p, P)),
    ("og_variants", ctypes.c_char_p, ()),
    ("og_variant", ctypes.c_char_p, ()),
    ("og_dtype_name", ctypes.c_char_p, (I,)),
    ("og_dtype_size", ctypes.c_size_t, (I,)),
):
    _function = getattr(CORE, _name)
    _function.restype, _function.argtypes = _result, _arguments


def message() -> ctypes.Array:
    return ctypes.create_string_buffer(2048)


def geometry(c: Conv2D, x, kernel) -> Conv2DSpec:
    """The spec of a convolution of arrays of these shapes, not resolved."""
    first = c.channels_first
    h, w = (x[axis] for axis in c.spatial_axes)
    depthwise = isinstance(c, DepthwiseConv2D)
    mode = {"SAME": SAME, "VALID": VALID}.get(c.padding, EXPLICIT)
    return Conv2DSpec(
        x[0], h, w, x[c.channel_axis], *kernel[:2],
        kernel[2] * kernel[3] if depthwise else kernel[3], *c.strides, *c.dilations,
        x[c.channel_axis] if depthwise else c.groups, *c.explicit_padding[0],
        *c.explicit_padding[1], 0, 0, mode, first, c.pad_value,
    )  # fmt: skip


def matmul_spec(case) -> tuple[MatmulSpec, list[np.ndarray]]:
    """The spec of a matrix product, and the arrays that it points to."""
    c, a, b = case.contraction, case.left, case.right
    m, k = a[-2:][::-1] if c.transpose_a else a[-2:]
    batch = case.output[:-2]
    number = [np.broadcast_to(np.arange(math.prod(s[:-2])).reshape(s[:-2]), batch) for s in (a, b)]
    index = [np.ascontiguousarray(n.ravel(), dtype=np.int64) for n in number]
    spec = MatmulSpec(m, k, case.output[-1], math.prod(batch), *(i.ctypes.data for i in index),
                      c.transpose_a, c.transpose_b)  # fmt: skip
    return spec, index


# ---- calls ---------------------------------------------------------------------------------


class Guarded:
    """Memory with a guard on both sides, aligned as the core asks for."""

    def __init__(self, size: int):
        self.memory = np.full(size + 256, 0xA5, np.uint8)
        start = 64 + -self.memory.ctypes.data % 64
        self.inside = self.memory[start : start + size]
        self.pointer = self.memory.ctypes.data + start
        self.around = (self.memory[:start], self.memory[start + size :])

    def intact(self) -> bool:
        return all((part == 0xA5).all() for part in self.around)


def run(kind: str, call: Call, spec, left, right, size: int):
    """(output of `size` floats, status, text) in memory of exactly the size that was asked for."""
    text = message()
    arguments = ctypes.byref(call), ctypes.byref(spec)
    status = getattr(CORE, f"og_{kind}_prepare")(*arguments, text)
    assert status == 0, text.value
    scratch = Guarded(call.scratch_bytes)
    out = Guarded(size * CORE.og_dtype_size(call.result_dtype))
    status = getattr(CORE, f"og_{kind}_run")(
        *arguments, left.ctypes.data, right.ctypes.data, out.pointer, scratch.pointer, text
    )
    assert scratch.intact()
    assert out.intact()
    return out.inside, status, text.value.decode()

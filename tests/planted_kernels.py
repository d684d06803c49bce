"""C functions with one mistake each, of the kinds that people make."""

import platform
import re

import numpy as np
from planting import Planted, kernel, mistakes, one_in

VALUES = [
    *mistakes("conv2d.c", "forward", {
        "SYMMETRIC_SAME": "agrees with symmetric padding",
        "ODD_PADDING_FIRST": "agrees with the odd padding above and left",
        "VALID_INSTEAD_OF_SAME": "agrees with VALID padding",
        "ROTATED_KERNEL": "agrees with the kernel rotated by 180°",
        "TRANSPOSED_KERNEL": "agrees with the kernel's height and width swapped",
        "OUTPUT_CHANNELS_FIRST": "agrees with OHWI",
        "BOTH_CHANNELS_FIRST": "agrees with OIHW",
        "INPUT_CHANNELS_LAST": "agrees with HWOI",
        "SWAPPED_HEIGHT_AND_WIDTH": "agrees with the image's height and width swapped",
        "NCHW_INPUT": "agrees with an NCHW input",
        "NCHW_OUTPUT": "agrees with an NCHW output",
        "FIRST_IMAGE_ONLY": "wrong only for batch > 1",
        "ROWS_OF_EVEN_LENGTH": "wrong only for odd sizes",
        "SQUARE_IMAGES": "wrong only for non-square sizes",
        "SWAPPED_STRIDES": "agrees with strides swapped",
        "STRIDES_IGNORED": "agrees with stride 1 and the output cut",
        "SHIFTED_BY_ONE_ROW": "agrees with the output shifted by one row",
        "SHIFTED_BY_ONE_COLUMN": "agrees with the output shifted by one column",
        "LAST_KERNEL_ROW_LEFT_OUT": "agrees with the last kernel row left out",
        "LAST_KERNEL_COLUMN_LEFT_OUT": "agrees with the last kernel column left out",
        "LAST_INPUT_CHANNEL_LEFT_OUT": "agrees with the last input channel left out",
        "LAST_ROW_UNWRITTEN": "last row never written",
        "LAST_COLUMN_UNWRITTEN": "last column never written",
        "LAST_CHANNEL_UNWRITTEN": "last channel never written",
        "LAST_IMAGE_UNWRITTEN": "last image never written",
        "OUTSIDE_UNWRITTEN": "<n> elements never written",
        "MEAN_OVER_THE_BATCH": "depends on the batch size",
        "SLIGHTLY_TOO_LARGE": "is 1.0005 times what is due",
        "SIGN_REVERSED": "is -1 times what is due",
        "ADDS_TO_OUTPUT": "adds to what was in the output",
        "NAN_FROM_THE_THIRD_IMAGE": "is NaN or infinite",
        "ABSOLUTE_VALUES": "",
    }),
    *mistakes("conv2d_full.c", "forward", {
        "DILATIONS_IGNORED": "agrees with dilation ignored",
        "DILATIONS_SWAPPED": "agrees with dilations swapped",
        "GROUPS_IGNORED": "agrees with groups ignored",
        "GROUPS_REVERSED": "agrees with groups in reverse order",
        "PAD_VALUE_IGNORED": "agrees with the pad value ignored",
        "BORDER_REPEATED": "",
    }),
    *mistakes("matmul.c", "forward", {
        "FIRST_OPERAND_TRANSPOSED": "agrees with the first operand transposed",
        "SECOND_OPERAND_TRANSPOSED": "agrees with the second operand transposed",
        "RESULT_TRANSPOSED": "agrees with the result transposed",
        "FIRST_TERM_LEFT_OUT": "agrees with the first term left out",
        "LAST_TERM_LEFT_OUT": "agrees with the last term left out",
        "LAST_ROW_UNWRITTEN": "last row never written",
        "LAST_COLUMN_UNWRITTEN": "last column never written",
        "EVERY_OTHER_COLUMN_UNWRITTEN": "<n> elements never written",
        "ADDS_TO_OUTPUT": "adds to what was in the output",
        "SLIGHTLY_TOO_LARGE": "is 1.0005 times what is due",
        "MEAN_OVER_THE_ROWS": "depends on the batch size",
        "LARGE_SUMS_CUT_OFF": "",
    }),
]  # fmt: skip

CONTRACT = [
    *mistakes("contract.c", "contract", {
        "READS_PAST_INPUT": "reads beyond the end of its input",
        "READS_PAST_KERNEL": "reads beyond the end of its kernel",
        "READS_BEFORE_INPUT": "reads before the start of its input",
        "READS_BEFORE_KERNEL": "reads before the start of its kernel",
        "WRITES_PAST_OUTPUT": "writes beyond the end of its output",
        "WRITES_FAR_PAST_OUTPUT": "writes beyond the end of its output",
        "WRITES_BEFORE_OUTPUT": "writes before the start of its output",
        "WRITES_INPUT": "writes to its input",
        "RESTORES_INPUT": "writes to its input",
        "WRITES_KERNEL": "writes to its kernel",
        "READS_OUTPUT": "reads its output before writing it",
        "CRASHES": "crashes (SIGSEGV)",
        "CRASHES_FOR_ONE_ROW": "crashes (SIGFPE)",
        "ABORTS": "crashes (SIGABRT)",
        "STACK_OVERFLOW": "crashes (SIGSEGV)",
        "RETURNS_SEVEN": "returns 7",
        "EXITS": "crashes (exit(0))",
        "RUNNING_SUM": "keeps state between calls",
        "STALE_KERNEL": "keeps state between calls",
        "STATIC_SCRATCH": "is not safe to call from two threads at once",
        "RANDOM": "is not deterministic",
        "CLOCK": "is not deterministic",
        "HEAP": "is not deterministic",
    }),
    *mistakes("matmul.c", "contract", {
        "TIMES_ZERO_IS_ZERO": "reads its output before writing it",
    }),
    *mistakes("conv2d_full.c", "contract", {
        "KERNEL_OF_ALL_CHANNELS": "reads beyond the end of its kernel",
    }),
    Planted("contract never_returns", kernel("contract.c", "NEVER_RETURNS", time_limit=1.0),
            "never returns", "contract"),
    Planted("contract waits_forever", kernel("contract.c", "WAITS_FOREVER", time_limit=1.0),
            "never returns", "contract"),
    Planted("contract takes_memory", kernel("contract.c", "TAKES_MEMORY", memory_limit=2**28),
            "takes too much memory", "contract"),
    Planted("matmul indices of type int", kernel("matmul.c", large=True),
            "indices overflow beyond 2^31 elements", "contract", slow=True),
    Planted("conv2d indices of type int", kernel("conv2d.c", large=True),
            "indices overflow beyond 2^31 elements", "contract", slow=True),
]  # fmt: skip
X86 = platform.machine() in ("x86_64", "AMD64")
if X86:
    CONTRACT += [Planted("aligned loads", kernel("aligned.c"), "crashes (SIGSEGV)", "contract")]

# ---- a prototype that is not the function's -----------------------------------------------

MATMUL = "void matmul(const float *a, const float *b, int m, int k, int n, float *out)"
CONV2D = (
    "void conv2d(const float *inputs, const float *filters, int batch, int h, int w, int in_ch, "
    "int filter_h, int filter_w, int out_ch, int stride_h, int stride_w, const char *padding, "
    "float *out)"
)
CONV2D_FULL = (
    "void conv2d_full(const float *input, const float *kernel, long batch, long h, long w, "
    "long in_ch, long kernel_h, long kernel_w, long out_ch, long stride_h, long stride_w, "
    "long dilation_h, long dilation_w, long groups, long pad_top, long pad_bottom, long pad_left, "
    "long pad_right, long out_h, long out_w, float pad_value, float *out)"
)


def exchanged(file: str, prototype: str, first: str, second: str) -> Planted:
    """Two parameters are declared in another order than the function has them."""
    places = {first: second, second: first}
    text = re.sub(r"\w+(?=[,)])", lambda found: places.get(found[0], found[0]), prototype)
    names = sorted((first, second), key=lambda name: re.search(rf"\b{name}\b", text).start())
    finding = f"agrees with '{names[0]}' and '{names[1]}' exchanged"
    stem = file.removesuffix(".c")
    return Planted(f"{stem} {first} and {second} exchanged", kernel(file, "", text), finding)


def typed(symbol: str, operand: str, result: str) -> str:
    return (
        f"void {symbol}(const {operand} *a, const {operand} *b, int m, int k, int n, {result} *out)"
    )


DECLARED = [
    exchanged("matmul.c", MATMUL, "a", "b"),
    exchanged("matmul.c", MATMUL, "m", "k"),
    exchanged("matmul.c", MATMUL, "k", "n"),
    exchanged("matmul.c", MATMUL, "m", "n"),
    exchanged("conv2d.c", CONV2D, "h", "w"),
    exchanged("conv2d.c", CONV2D, "in_ch", "out_ch"),
    exchanged("conv2d.c", CONV2D, "filter_h", "filter_w"),
    exchanged("conv2d_full.c", CONV2D_FULL, "pad_top", "pad_left"),
    exchanged("conv2d_full.c", CONV2D_FULL, "batch", "groups"),
    Planted("matmul output in the place of the kernel",
            kernel("matmul.c", "", "void matmul(const float *a, float *out, int m, int k, int n, "
                   "const float *b)"),
            "writes to its kernel", "contract", ("agrees with 'out' and 'b' exchanged",)),
    Planted("rounding doubles behind floats",
            kernel("rounding.c", "", typed("doubles", "float", "float")),
            "agrees with double instead of float"),
    Planted("rounding double result behind float",
            kernel("rounding.c", "", typed("wide_result", "float", "float")),
            "writes beyond the end of its output", "contract"),
    Planted("rounding unsigned behind signed bytes",
            kernel("rounding.c", "", typed("unsigned_bytes", "int8_t", "int32_t")),
            "agrees with uint8_t instead of int8_t"),
]  # fmt: skip


# ---- how numbers are multiplied and summed ------------------------------------------------


def upper_halves(a, b):
    """The product of float32 numbers whose lower 16 bits are cut off."""
    return np.multiply(*(
        (np.asarray(v, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        for v in (a, b)
    ))  # fmt: skip


def without_lowest_bit(a, b):
    """The product of integers, the lowest bit of the first cut off."""
    return (np.asarray(a).astype(np.int64) & ~1) * np.asarray(b).astype(np.int64)


FLOAT_MUL = "float {}(float a, float b)"
INT_MUL = "int32_t {}(int32_t a, int32_t b)"

ARITHMETIC = [
    Planted("rounding sums in float16",
            kernel("rounding.c", "", typed("half_sums", "float", "float")),
            "agrees with sums in float16"),
    Planted("rounding sums in bfloat16",
            kernel("rounding.c", "", typed("bfloat_sums", "float", "float")),
            "agrees with sums in bfloat16"),
    Planted("rounding sums in int8",
            kernel("rounding.c", "", typed("narrow_sums", "int8_t", "int32_t")),
            "agrees with sums in int8"),
    Planted("scalar slightly too large",
            kernel("scalar.c", "", FLOAT_MUL.format("slightly_too_large")),
            "is 1.0005 times what is due"),
    Planted("scalar sign lost", kernel("scalar.c", "", FLOAT_MUL.format("sign_lost")), ""),
    Planted("scalar remembers", kernel("scalar.c", "", FLOAT_MUL.format("previous")),
            "keeps state between calls", "contract"),
    Planted("scalar exact, approximate claimed",
            kernel("scalar.c", "", FLOAT_MUL.format("exact"), multiply=upper_halves),
            "agrees with exact multiplication"),
    Planted("scalar integers exact, approximate claimed",
            kernel("scalar.c", "", INT_MUL.format("exact_integers"), multiply=without_lowest_bit),
            "agrees with exact multiplication"),
    Planted("matmul exact, approximate claimed",
            kernel("matmul.c", "", MATMUL, multiply=upper_halves),
            "agrees with exact multiplication"),
    Planted("conv2d exact, approximate claimed",
            kernel("conv2d.c", "", CONV2D, multiply=upper_halves),
            "agrees with exact multiplication"),
    Planted("scalar approximate in the other operand",
            kernel("scalar.c", "", INT_MUL.format("exchanged"), multiply=without_lowest_bit),
            "agrees with 'a' and 'b' exchanged"),
    Planted("scalar approximate, exact claimed",
            kernel("scalar.c", "", INT_MUL.format("truncated")), ""),
]  # fmt: skip

KERNELS = [
    *one_in(3, VALUES), *one_in(2, CONTRACT), *one_in(3, DECLARED), *one_in(2, ARITHMETIC),
]  # fmt: skip

"""What Opgraft itself costs: everything but your C function.

    python benchmarks/dispatch.py [--json FILE] [--rounds N]

Prints a table of ratios. Both sides of a ratio are measured in turn in this one
run, and the figure is the median over the rounds; times of one processor are CPU
time, the time of two kernels side by side is wall-clock time. Nothing else
should run on the machine.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from measuring import median_times

import opgraft as og
from opgraft.models import lenet5

MATMUL = "(const float *a, const float *b, int m, int k, int n, float *out)"

SOURCE = """
#include <stdint.h>
#include <time.h>

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* A plain loop that calls nothing. */
static void loop(const float *a, const float *b, int m, int k, int n, float *out) {
  for (int i = 0; i < m; i++) {
    float *row = out + (int64_t)i * n;
    for (int j = 0; j < n; j++) row[j] = 0;
    for (int l = 0; l < k; l++)
      for (int j = 0; j < n; j++) row[j] += a[(int64_t)i * k + l] * b[(int64_t)l * n + j];
  }
}

void plain SIGNATURE { loop(a, b, m, k, n, out); }

/* The same, and it knows how much CPU time it took. */
static _Atomic int64_t spent;
int64_t take_spent(void) { return __atomic_exchange_n(&spent, 0, __ATOMIC_SEQ_CST); }
void timed SIGNATURE {
  double start = seconds(CLOCK_THREAD_CPUTIME_ID);
  loop(a, b, m, k, n, out);
  spent += (int64_t)(1e9 * (seconds(CLOCK_THREAD_CPUTIME_ID) - start));
}

/* About 50 ms of work on one processor. */
void busy SIGNATURE {
  (void)k, (void)b;
  double start = seconds(CLOCK_THREAD_CPUTIME_ID);
  while (seconds(CLOCK_THREAD_CPUTIME_ID) - start < 0.05) {}
  for (int i = 0; i < m * n; i++) out[i] = a[0];
}
""".replace("SIGNATURE", MATMUL)


def through_ctypes(function):
    """The function as `tf.numpy_function` would be given it: arrays in, array out."""
    pointer = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
    function.argtypes = [pointer, pointer, *[ctypes.c_int] * 3, pointer]
    function.restype = None

    def call(a, b):
        out = np.empty((a.shape[0], b.shape[1]), np.float32)
        function(a, b, a.shape[0], a.shape[1], b.shape[1], out)
        return out

    return call


def chain(step, length: int = 1000):
    """A graph of `length` small operations, each on the result of the one before."""
    b = tf.eye(4)

    @tf.function
    def run(x):
        for _ in range(length):
            x = step(x, b)
            x.set_shape((4, 4))
        return x

    x = tf.random.normal((4, 4))
    return lambda: run(x).numpy()


def small_ops(arithmetic, call, rounds: int) -> list[tuple]:
    ours, native, callback = median_times(
        time.process_time,
        rounds,
        chain(lambda x, b: og.matmul(x, b, arithmetic=arithmetic)),
        chain(tf.matmul),
        chain(lambda x, b: tf.numpy_function(call, [x, b], tf.float32)),
    )
    return [
        ("small op / tf.numpy_function with ctypes", ours / callback, 0.25, ours, callback),
        ("small op / native op", ours / native, 2.0, ours, native),
    ]


def side_by_side(busy, rounds: int) -> list[tuple]:
    a, b = tf.ones((1, 1)), tf.ones((1, 1))
    one = tf.function(lambda a, b: og.matmul(a, b, arithmetic=busy))
    two = tf.function(
        lambda a, b: (og.matmul(a, b, arithmetic=busy), og.matmul(a + 1, b, arithmetic=busy))
    )
    both, single = median_times(
        time.perf_counter, rounds, lambda: two(a, b)[1].numpy(), lambda: one(a, b).numpy()
    )
    return [("two independent 50 ms kernels / one", both / single, 1.25, both, single)]


def large_buffers(plain, function, rounds: int) -> list[tuple]:
    """64 MB in, 64 MB out: into fresh memory, as every operation's output is, and into old.

    The system hands out 64 MB page by page when they are first written, which is no
    copy, but may cost as much: the first row sets like against like.
    """
    a = tf.random.normal((2**17, 128))
    b = tf.random.normal((128, 128))
    run = tf.function(lambda a, b: og.matmul(a, b, arithmetic=plain))
    sizes = (*a.shape, b.shape[1])
    array_a, array_b, old = a.numpy(), b.numpy(), np.empty(a.shape, np.float32)

    libc = ctypes.CDLL(None)  # whose malloc is TensorFlow's CPU allocator
    libc.malloc.restype = ctypes.POINTER(ctypes.c_float)
    libc.malloc.argtypes = [ctypes.c_size_t]

    def into_fresh_memory():
        out = libc.malloc(old.nbytes)
        function(array_a, array_b, *sizes, np.ctypeslib.as_array(out, old.shape))
        libc.free(out)

    ours, fresh, reused = median_times(
        time.process_time,
        rounds,
        lambda: run(a, b),
        into_fresh_memory,
        lambda: function(array_a, array_b, *sizes, old),
    )
    return [
        ("64 MB in and out / the C function, fresh memory", ours / fresh, 1.1, ours, fresh),
        ("64 MB in and out / the C function, old memory", ours / reused, None, ours, reused),
    ]


def training_step(model, x, y):
    """One compiled step of a model as `fit` runs it."""
    model.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy())
    return lambda: model.train_on_batch(x, y)


def contractions_alone(model, x):
    """The native forward contractions of a model, on the inputs that they have in it."""
    layers = [layer for layer in model.layers if layer.weights]
    inputs = keras.Model(model.inputs, [layer.input for layer in layers])(x)
    kernels = [layer.kernel.value for layer in layers]

    def forward(*tensors):
        results = []
        for layer, tensor, kernel in zip(layers, tensors, kernels, strict=True):
            if isinstance(layer, keras.layers.Dense):
                results.append(tf.matmul(tensor, kernel))
            else:
                results.append(tf.nn.conv2d(tensor, kernel, 1, layer.padding.upper()))
        return results

    run = tf.function(forward)
    return lambda: run(*inputs)


def lenet_steps(timed, take_spent, rounds: int) -> list[tuple]:
    random = np.random.default_rng(0)
    x = random.random((128, 28, 28, 1), dtype=np.float32)
    y = random.integers(0, 10, 128)
    native_model, exact_model, c_model = (lenet5(seed=1) for _ in range(3))
    og.swap(exact_model, og.exact)
    og.swap(c_model, timed)
    c_step = training_step(c_model, x, y)
    own = []

    def counted():
        take_spent()
        c_step()
        own.append(take_spent() / 1e9)

    native, exact, through_c, forward = median_times(
        time.process_time,
        rounds,
        training_step(native_model, x, y),
        training_step(exact_model, x, y),
        counted,
        contractions_alone(native_model, x),
    )
    expected = statistics.median(own) + native - forward
    return [
        ("LeNet-5 step, exact through our layers / Keras", exact / native, 1.15, exact, native),
        ("LeNet-5 step, C matmul / its loop + the native rest", through_c / expected, 1.1,
         through_c, expected),
    ]  # fmt: skip


def show(rows: list[tuple]) -> None:
    print(f"\n{'ratio of':<52} {'ratio':>7} {'target':>8} {'this, ms':>10} {'that, ms':>10}")
    for name, ratio, target, this, that in rows:
        limit = f"<= {target:g}" if target else ""
        print(f"{name:<52} {ratio:7.3f} {limit:>8} {1e3 * this:10.2f} {1e3 * that:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, help="also write the rows to this file")
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernels.c"
        source.write_text(SOURCE)
        plain, timed, busy = (
            og.c_function(source, f"void {name}{MATMUL}") for name in ("plain", "timed", "busy")
        )
        library = ctypes.CDLL(str(og.native.loading.compiled_file(plain.product.symbols[0])))
        rows = [
            *small_ops(plain, through_ctypes(library.plain), arguments.rounds),
            *side_by_side(busy, arguments.rounds),
            *large_buffers(plain, library.plain, arguments.rounds),
            *lenet_steps(timed, library.take_spent, arguments.rounds),
        ]
    og.show_config()
    show(rows)
    if arguments.json:
        keys = ("name", "ratio", "target", "seconds", "reference_seconds")
        rows_out = [dict(zip(keys, row, strict=True)) for row in rows]
        arguments.json.write_text(json.dumps(rows_out, indent=2) + "\n")


if __name__ == "__main__":
    main()

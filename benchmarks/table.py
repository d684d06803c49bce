"""How fast products by a table are, beside TensorFlow's own float operations.

    python benchmarks/table.py [--json FILE] [--rounds N]

The table is an arbitrary one: the exact product and random errors, of full rank. Both sides of a
ratio are measured in turn in one run, with one thread (CPU time) and with two (wall-clock time);
the figure is the median over the rounds. `conv` and `dense` are whole operations, quantization of
both float operands included; `codes` is the product of two matrices of codes alone. A loop that
looks up one product after the other stands for what simulators do. ResNet-8 needs ../shared/data
beside the repository, and is left out without. Nothing else should run on the machine.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import rich.table
from measuring import median_times
from rich.console import Console

DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
CONVOLUTIONS = [((1, 56, 56, 64), 64), ((8, 56, 56, 64), 64), ((1, 28, 28, 128), 128)]
PRODUCTS = [(3136, 576, 64), (25088, 576, 64), (6272, 1152, 128), (128, 400, 128), (1, 1024, 1000)]
ENGINES = ("auto", "expanded", "rows", "low_rank")
GATHER = """
#include <stdint.h>
void gather(const uint8_t *a, const uint8_t *b, const int16_t *table, long m, long k, long n,
            int32_t *out) {
  for (long i = 0; i < m; i++)
    for (long j = 0; j < n; j++) {
      int32_t sum = 0;
      for (long l = 0; l < k; l++) sum += table[a[i * k + l] * 256 + b[l * n + j]];
      out[i * n + j] = sum;
    }
}
"""


def gather_loop():
    """The C loop, compiled for this processor."""
    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "gather.c"), os.path.join(folder, "gather.so")
    pathlib.Path(source).write_text(GATHER)
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True)
    return ctypes.CDLL(library).gather


def measure(threads: int, rounds: int) -> list[dict]:
    """All rows with so many threads, in this process."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    clock = time.process_time if threads == 1 else time.perf_counter
    import opgraft as og
    from opgraft.backends.tensorflow import tables
    from opgraft.spec import MatMul

    draw = np.random.default_rng(0)
    exact = og.multipliers.exact(signed=True).table
    table = exact + draw.integers(-100, 100, exact.shape)
    arithmetic = og.approximate(og.Multiplier.from_array(table, signed=True, name="arbitrary"))
    rows = []

    def graph(function, *operands):
        traced = tf.function(function, autograph=False)
        return lambda: traced(*operands)

    def row(name, macs, ours, native, **more):
        rows.append({"name": name, "threads": threads, "gmacs": macs / ours / 1e9,
                     "native": macs / native / 1e9, "ratio": native / ours, **more})  # fmt: skip

    def normal(*shape):
        return tf.constant(draw.standard_normal(shape, np.float32))

    for shape, channels in CONVOLUTIONS:
        x, kernel = tf.nn.relu(normal(*shape)), normal(3, 3, shape[3], channels)
        macs = np.prod(shape[:3]) * 9 * shape[3] * channels
        times = median_times(
            clock, rounds,
            graph(lambda x, k: og.conv2d(x, k, arithmetic=arithmetic, padding="SAME"), x, kernel),
            graph(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), x, kernel),
        )  # fmt: skip
        row(f"conv {'x'.join(map(str, shape))} to {channels}, 3x3", macs, *times)
    for m, k, n in PRODUCTS:
        # Of small products many in one graph: to call a graph takes longer than one of them.
        count = 32 if m * k * n < 1e7 else 1
        xs, w = [tf.nn.relu(normal(m, k)) for _ in range(count)], normal(k, n)
        codes = [tf.constant(draw.integers(0, 128, (m, k)).astype(np.uint8)) for _ in xs]
        kernel = tf.constant(draw.integers(0, 256, (k, n)).astype(np.uint8))
        zeros = tf.constant([0, 0])

        def summed(kernel, *codes, zeros=zeros):
            return [tables.sums(MatMul(), arithmetic.product, a, kernel, zeros) for a in codes]

        whole, alone, native = median_times(
            clock, rounds,
            graph(lambda w, *xs: [og.matmul(x, w, arithmetic=arithmetic) for x in xs], w, *xs),
            graph(summed, kernel, *codes),
            graph(lambda w, *xs: [tf.matmul(x, w) for x in xs], w, *xs),
        )  # fmt: skip
        row(f"codes ({m}, {k}, {n})", m * k * n * count, alone, native)
        row(f"dense ({m}, {k}, {n})", m * k * n * count, whole, native)
    x, kernel = normal(1, 56, 56, 128), normal(3, 3, 128, 1)

    def depthwise(x, kernel):
        return og.depthwise_conv2d(x, kernel, arithmetic=arithmetic, padding="SAME")

    times = median_times(
        clock, rounds, graph(depthwise, x, kernel),
        graph(lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME"), x, kernel),
    )  # fmt: skip
    row("depthwise 1x56x56x128, 3x3", 56 * 56 * 128 * 9, *times)
    rows += engines(threads, clock, rounds, graph, normal)
    if threads == 1:
        rows.append(gathered(table, clock, rounds, rows))
    return rows + resnet(arithmetic, threads, clock)


def engines(threads: int, clock, rounds: int, graph, normal) -> list[dict]:
    """Every engine on multipliers of low rank, and the one that is chosen beside the best."""
    import tensorflow as tf

    import opgraft as og

    found = []
    for multiplier in (og.multipliers.broken_array(h1=1, signed=True),
                       og.multipliers.broken_array(v=4, signed=True)):  # fmt: skip
        arithmetic = og.approximate(multiplier)
        for shape, channels in ((CONVOLUTIONS[0]), ((1, 28, 28, 128), 128), ((8, 14, 14, 32), 32),
                                ((128, 400), 128), ((8, 400), 128)):  # fmt: skip
            if len(shape) == 4:
                x, kernel = tf.nn.relu(normal(*shape)), normal(3, 3, shape[3], channels)
                name = f"conv {'x'.join(map(str, shape))} to {channels}, 3x3"

                def ours(x, k, arithmetic=arithmetic):
                    return og.conv2d(x, k, arithmetic=arithmetic, padding="SAME")

                def native(x, k):
                    return tf.nn.conv2d(x, k, 1, "SAME")
            else:
                x, kernel = tf.nn.relu(normal(*shape)), normal(shape[1], channels)
                name = f"dense ({shape[0]}, {shape[1]}, {channels})"

                def ours(x, k, arithmetic=arithmetic):
                    return og.matmul(x, k, arithmetic=arithmetic)

                native = tf.matmul
            functions = [graph(native, x, kernel)]
            for engine in ENGINES:
                os.environ["OPGRAFT_TABLE_ENGINE"] = engine
                functions.append(graph(ours, x, kernel))
                functions[-1]()  # traced: the engine stands in the graph
            del os.environ["OPGRAFT_TABLE_ENGINE"]
            plain, *times = median_times(clock, rounds, *functions)
            rank = np.linalg.matrix_rank(multiplier.table - multiplier.exact)
            found.append({
                "name": f"{name}, rank {rank}", "threads": threads, "native": plain,
                **dict(zip(ENGINES, times, strict=True)),
            })  # fmt: skip
    return found


def gathered(table: np.ndarray, clock, rounds: int, rows: list[dict]) -> dict:
    """The loop of simulators, at the size of the first product."""
    m, k, n = PRODUCTS[0]
    draw = np.random.default_rng(1)
    a, b = draw.integers(0, 128, (m, k), np.uint8), draw.integers(0, 256, (k, n), np.uint8)
    entries, out = np.ascontiguousarray(table, np.int16), np.empty((m, n), np.int32)
    loop = gather_loop()
    sizes = [ctypes.c_long(size) for size in (m, k, n)]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, entries)]
    result = ctypes.c_void_p(out.ctypes.data)
    (seconds,) = median_times(clock, max(3, rounds // 3), lambda: loop(*pointers, *sizes, result))
    mine = next(r["gmacs"] for r in rows if r["name"].startswith("codes"))
    speed = m * k * n / seconds / 1e9
    return {"name": f"the gather loop ({m}, {k}, {n})", "threads": 1, "gmacs": speed,
            "native": None, "ratio": None, "ours / loop": mine / speed}  # fmt: skip


def resnet(arithmetic, threads: int, clock) -> list[dict]:
    """A training step of ResNet-8 at batch 32, and 1,000 images, against the plain model."""
    if not (DATA / "resnet8_cifar10.h5").exists():
        return []
    import keras

    import opgraft as og

    with np.load(DATA / "cifar10_lossless_5000.npz") as data:
        x, y = data["x_test"].astype(np.float32), data["y_test"].ravel()
    models = [keras.models.load_model(DATA / "resnet8_cifar10.h5", compile=False) for _ in range(2)]
    og.swap(models[0], {keras.layers.Conv2D: arithmetic})
    og.calibrate(models[0], x[:100])
    for model in models:
        model.compile(keras.optimizers.Adam(1e-5), "sparse_categorical_crossentropy")
    steps = [lambda m=m: m.train_on_batch(x[:32], y[:32]) for m in models]
    runs = [lambda m=m: m.predict(x, batch_size=100, verbose=0) for m in models]
    found = []
    for name, functions, rounds in (("ResNet-8, a training step of 32", steps, 9),
                                    ("ResNet-8, 1,000 images", runs, 3)):  # fmt: skip
        mine, native = median_times(clock, rounds, *functions)
        found.append({"name": name, "threads": threads, "gmacs": None, "native": None,
                      "ratio": native / mine, "times native": mine / native})  # fmt: skip
    return found


def show(rows: list[dict]) -> None:
    table = rich.table.Table("", "threads", "GMAC/s", "native", "ours / native speed", "")
    by_engine = [row for row in rows if "low_rank" in row]
    rows = [row for row in rows if row not in by_engine]
    for row in rows:
        numbers = [row[key] for key in ("gmacs", "native", "ratio")]
        more = [f"{key}: {row[key]:.2f}" for key in ("ours / loop", "times native") if key in row]
        table.add_row(row["name"], str(row["threads"]),
                      *("" if x is None else f"{x:.2f}" for x in numbers), *more)  # fmt: skip
    for row in rows:
        one = next((r for r in rows if r["name"] == row["name"] and r["threads"] == 1), row)
        if row["threads"] == 2 and row["gmacs"] and row["name"].startswith("conv 1x"):
            table.add_row(
                f"{row['name']}: two threads / one", "", f"{row['gmacs'] / one['gmacs']:.2f}"
            )
    Console().print(table)
    if by_engine:
        Console().print(engine_table(by_engine))


def engine_table(rows: list[dict]) -> rich.table.Table:
    """Speeds in parts of native speed; rank is that of the error."""
    table = rich.table.Table("engines, of native speed", "threads", *ENGINES, "auto / best")
    for row in rows:
        best = min(row[engine] for engine in ENGINES[1:])
        speeds = [f"{row['native'] / row[engine]:.2f}" for engine in ENGINES]
        table.add_row(row["name"], str(row["threads"]), *speeds, f"{row['auto'] / best:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads:
        print(json.dumps(measure(options.threads, options.rounds)))
        return
    rows = []
    for threads in (1, 2):
        command = [
            sys.executable,
            __file__,
            "--threads",
            str(threads),
            "--rounds",
            str(options.rounds),
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows += json.loads(done.stdout.splitlines()[-1])
    show(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

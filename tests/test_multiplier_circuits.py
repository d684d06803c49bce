"""Tables from C functions, Python functions and Verilog modules."""

import math
import shutil

import numpy as np
import pytest

import opgraft as og
from opgraft.errors import ArgumentError
from opgraft.multipliers import circuits, verilog

needs_verilog = pytest.mark.skipif(
    shutil.which("iverilog") is None, reason="Icarus Verilog is not installed"
)
EXACT = og.multipliers.exact
TRUNCATED = og.multipliers.broken_array(2, 1, 4)
TRUNCATED_SIGNED = og.multipliers.broken_array(2, 1, 4, signed=True)

# Partial products one by one, of the codes, as a netlist has them.
BODY = """
    int total = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            if ((a >> i & 1) && (b >> j & 1) && i >= 2 && j >= 1 && i + j >= 4)
                total += SIGNED && (i == M - 1) != (j == N - 1) ? -(1 << (i + j)) : 1 << (i + j);
    return total;
}
"""


@pytest.fixture
def from_c(compile_c):
    """A function: a signature and a body -> the multiplier."""

    def read(head, body=BODY, m=8, n=8, signed=False, **keywords):
        defined = f"#define M {m}\n#define N {n}\n#define SIGNED {int(signed)}\n"
        path = compile_c(f"#include <stdint.h>\n#include <stdlib.h>\n{defined}{head}\n{{{body}")
        return og.Multiplier.from_c(path, **keywords)

    return read


def told(function, *arguments, **keywords):
    with pytest.raises(ArgumentError) as error:
        function(*arguments, **keywords)
    return str(error.value)


# ---- C: the signatures of EvoApproxLib -----------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        "uint16_t mul8u_X(uint8_t a, uint8_t b)",
        "uint64_t mul8u_X(uint64_t a, uint64_t b)",
        "uint64_t mul8u_X(const uint64_t a, const uint64_t b)",
        "uint32_t mul8u_X(uint32_t a, uint32_t b)",
        "int mul8u_X(int a, int b)",  # the name says that they are codes
        "uint16_t f(uint8_t a, uint8_t b)",
    ],
)
def test_unsigned_circuits(head, from_c):
    found = from_c(head)
    assert found == TRUNCATED
    assert found.name == head.partition("(")[0].split()[-1]
    assert from_c(head, signed=False) == TRUNCATED


@pytest.mark.parametrize(
    "head",
    [
        "int16_t mul8s_X(int8_t a, int8_t b)",
        "int32_t f(int8_t a, int8_t b)",
        "int64_t mul8s_X(int64_t a, int64_t b)",
    ],
)
def test_signed_circuits(head, from_c):
    found = from_c(head, signed=True)
    assert found == TRUNCATED_SIGNED
    assert found.notes == ()  # the types say it


@pytest.mark.parametrize(
    "head",
    [
        "uint16_t mul8s_X(uint8_t a, uint8_t b)",
        "uint64_t mul8s_X(uint64_t a, uint64_t b)",  # the sign is extended to 64 bits
        "uint32_t f(uint8_t a, uint8_t b)",
        "int16_t f(uint8_t a, uint8_t b)",
    ],
)
def test_signed_circuits_that_are_declared_unsigned(head, from_c):
    found = from_c(head, signed=True)
    assert found == TRUNCATED_SIGNED
    assert found.notes[0].startswith("taken for signed: read so its mean absolute error is ")


def test_a_sign_that_is_told(compile_c):
    path = compile_c(
        "#include <stdint.h>\n"
        "uint16_t mul8s_X(uint8_t a, uint8_t b) { return (int8_t)a * (int8_t)b; }\n"
    )
    found = og.Multiplier.from_c(path, signed=True)
    assert found == EXACT(signed=True)
    assert found.notes[0].startswith("its results are written as unsigned 16-bit numbers")
    read = og.Multiplier.from_c(path, signed=False)
    assert read.signed is False
    assert read.metrics()["MAE"] > 16000
    assert "more than half of the mean product" in read.surprises()[0]


@pytest.mark.parametrize(
    ("head", "keywords", "m", "n"),
    [
        ("uint8_t mul4u_X(uint8_t a, uint8_t b)", {}, 4, 4),
        ("uint64_t mul7x5u_X(uint64_t a, uint64_t b)", {}, 7, 5),
        ("uint16_t mul3x8u(uint16_t a, uint16_t b)", {}, 3, 8),
        ("uint16_t f(uint16_t a, uint16_t b)", {"widths": 6}, 6, 6),
        ("uint16_t f(uint8_t a, uint8_t b)", {"widths": (8, 4)}, 8, 4),
        ("uint16_t mul8u_X(uint8_t a, uint8_t b)", {"widths": [5, 3]}, 5, 3),
    ],
)
def test_widths_are_those_of_the_name_or_given(head, keywords, m, n, from_c):
    found = from_c(head, m=m, n=n, **keywords)
    assert found.widths == (m, n)
    assert found == og.multipliers.broken_array(2, 1, 4, widths=(m, n))


@pytest.mark.parametrize("result", ["uint8_t", "uint16_t", "uint32_t", "uint64_t", "int"])
def test_narrow_signed_results_in_wide_words(result, from_c):
    for keywords in ({}, {"widths": (4, 3)}):
        found = from_c(f"{result} mul4x3s_X(uint8_t a, uint8_t b)", m=4, n=3, signed=True,
                       **keywords)  # fmt: skip
        assert found == og.multipliers.broken_array(2, 1, 4, widths=(4, 3), signed=True)


def test_operands_that_are_floats(from_c):
    found = from_c("float f(float a, float b)", "return a * b + 0.5f;}", widths=(3, 4))
    np.testing.assert_array_equal(found.table, EXACT((3, 4), signed=True).table + 0.5)
    whole = from_c("double f(double a, double b)", "return a * b;}", widths=4)
    assert whole == EXACT(4, signed=True)


def test_the_first_parameter_is_the_first_operand(from_c):
    found = from_c("int16_t f(uint8_t b, uint8_t a)", "return 2 * b + a;}")
    assert found(5, 9) == 19


def test_a_source_is_a_file_like_others(compile_c):
    path = compile_c("unsigned f(unsigned char a, unsigned char b) { return a * b; }", "mine.c")
    found = og.Multiplier.from_file(path, signed=False)
    assert found == EXACT()
    assert found.name == "f"
    flagged = compile_c("unsigned f(unsigned char a, unsigned char b) { return a * b + N; }")
    assert og.Multiplier.from_c(flagged, flags="-DN=1", signed=False)(7, 9) == 64


# ---- C: what is refused ----------------------------------------------------------------------


def test_functions_that_are_no_products(from_c):
    assert "from_c: f (matmul): a function of two numbers is needed, such as uint16_t f(" in told(
        from_c, "void f(const float *a, const float *b, int m, int k, int n, float *out)", "}"
    )
    assert "from_c: f takes uint16, and its name does not say how many bits are used; give" in told(
        from_c, "uint16_t f(uint16_t a, uint16_t b)"
    )
    assert "widths=12 must be a number of bits from 2 to 8" in told(
        from_c, "int f(int a, int b)", widths=12
    )
    assert "widths=(16, 16) must be" in told(from_c, "uint64_t mul16u_X(uint64_t a, uint64_t b)")
    assert "numbers beyond 2^31" in told(
        from_c, "int64_t mul8s_X(int64_t a, int64_t b)", "return a * b << 40;}"
    )


def test_a_function_with_side_effects(from_c):
    head = "static int calls; int f(int a, int b)"
    message = told(from_c, head, "return a * b + calls++ / 9;}", widths=3)
    assert "what it returns depends on earlier calls, and is no table" in message
    assert message.startswith("from_c: f(0, 0) gives 0 and then 14")


def test_a_function_that_crashes(from_c):
    message = told(from_c, "int f(int a, int b)", "if (a == 3 && b == -2) abort(); return a * b;}",
                   widths=4)  # fmt: skip
    assert message.startswith("from_c: f crashes (SIGABRT) while all pairs of numbers are computed")
    assert message.endswith("`opgraft verify` finds the pair")


def test_a_function_that_does_not_come_back(from_c, monkeypatch):
    monkeypatch.setattr(circuits, "_SECONDS", 0.5)
    message = told(from_c, "int f(int a, int b)", "while (a == 3 && b) ; return a * b;}", widths=4,
                   flags="-O0")  # fmt: skip
    assert "from_c: f " in message
    assert "while all pairs of numbers are computed" in message


# ---- Python ----------------------------------------------------------------------------------


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("widths", [8, (3, 5)], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda a, b: a * b, id="arrays"),
        pytest.param(lambda a, b: math.prod((int(a), int(b))), id="numbers"),
        pytest.param(lambda a, b: a * b if a > 1 else b * a, id="a branch"),
        pytest.param(np.multiply, id="ufunc"),
    ],
)
def test_a_python_function(function, widths, signed):
    found = og.Multiplier.from_function(function, signed=signed, widths=widths)
    assert found == EXACT(widths, signed=signed)
    assert found.notes == ()


def test_a_python_function_of_fractions_and_its_name():
    def halved(a, b):
        return a * b / 4

    found = og.Multiplier.from_function(halved, widths=3)
    assert found.name == "halved"
    assert found(3, 5) == 3.75
    assert og.Multiplier.from_function(lambda a, b: a, widths=3).name == ""
    assert og.Multiplier.from_function(halved, widths=3, name="mine").name == "mine"


def test_a_function_that_writes_into_its_operands():
    def careless(a, b):
        a *= b
        return a

    assert og.Multiplier.from_function(careless, widths=(3, 4)) == EXACT((3, 4))


def test_python_functions_that_are_refused():
    calls = iter(range(10**6))

    def counting(a, b):
        return a * b + next(calls)

    def failing(a, b):
        return [1, 2, 3][int(a)] * b

    read = og.Multiplier.from_function
    assert "it is no function of its operands alone" in told(read, counting, widths=2)
    message = told(read, failing, widths=2)
    assert "failing' fails for a pair of numbers: IndexError: list index out of range" in message
    assert "fails for a pair of numbers: TypeError" in told(read, lambda a, b: None, widths=2)
    assert told(read, 5) == "from_function: 5 is no function of two numbers"
    assert told(read, np.multiply, signed=None) == "signed=None must be True or False"
    assert "widths=9 must be a number of bits" in told(read, np.multiply, widths=9)
    assert "the table holds numbers beyond 2^31" in told(read, lambda a, b: a * 10**12, widths=2)


def test_results_that_are_no_numbers_are_the_same_twice():
    found = og.Multiplier.from_function(lambda a, b: a / b if b else math.nan, widths=2)
    assert np.isnan(found.table[:, 0]).all()
    assert found(3, 2) == 1.5


# ---- Verilog ---------------------------------------------------------------------------------


@pytest.fixture
def from_verilog(tmp_path):
    """A function: the text of a source -> the multiplier."""

    def read(text, **keywords):
        path = tmp_path / "circuit.v"
        path.write_text(text)
        return og.Multiplier.from_verilog(path, **keywords)

    return read


ZERO = "1'b0"


def netlist(m, n, columns):
    """An array of full adders: gates alone, with the lowest columns left out."""
    lines = [f"module mul(A, B, O); input [{m - 1}:0] A; input [{n - 1}:0] B;",
             f"output [{m + n - 1}:0] O;"]  # fmt: skip
    heap = [[] for _ in range(m + n + 1)]
    for i in range(m):
        for j in range(n):
            if i + j >= columns:
                lines.append(f"wire p{i}_{j}; and g{i}_{j}(p{i}_{j}, A[{i}], B[{j}]);")
                heap[i + j].append(f"p{i}_{j}")
    count = 0
    for column in range(m + n):
        while len(heap[column]) > 1:
            x, y, *rest = heap[column]
            z, heap[column] = (rest[0], rest[1:]) if rest else (ZERO, [])
            s, c, count = f"s{count}", f"c{count}", count + 1
            lines.append(f"wire {s}, {c}; xor ({s}, {x}, {y}, {z});")
            lines.append(f"wire {c}a, {c}b, {c}c; and ({c}a, {x}, {y}); and ({c}b, {x}, {z});")
            lines.append(f"and ({c}c, {y}, {z}); or ({c}, {c}a, {c}b, {c}c);")
            heap[column].append(s)
            heap[column + 1].append(c)
        lines.append(f"assign O[{column}] = {(heap[column] or [ZERO])[0]};")
    return "\n".join([*lines, "endmodule"])


@needs_verilog
@pytest.mark.parametrize(("m", "n", "columns"), [(8, 8, 4), (3, 5, 0)])
def test_a_netlist_of_gates(m, n, columns, from_verilog):
    found = from_verilog(netlist(m, n, columns))
    assert found == og.multipliers.truncated((m, n), columns=columns)
    assert found.name == "mul"
    assert found.notes[0].startswith("taken for unsigned")


@needs_verilog
@pytest.mark.parametrize(
    "text",
    [
        "module mul(input [3:0] a, input [2:0] b, output [6:0] y); assign y = BODY;",
        "module mul(input wire [3:0] a, input wire [2:0] b, output wire [6:0] y); assign y = BODY;",
        "module mul(a, b, y); input [3:0] a; input [2:0] b; output [6:0] y; assign y = BODY;",
        "module mul(a, b, y); output reg [6:0] y; input [2:0] b; input [3:0] a;\n"
        "always @(*) y = BODY;",  # declared in another order than that of the ports
        "module mul #(parameter M = 4, N = 3) (input [M-1:0] a, input [N - 1:0] b,\n"
        "  output logic [M+N-1:0] y); assign y = BODY;",
        "module mul(y, a, b); /* input [9:0] c; */ input [0:3] a; // input d\n"
        "input [0:2] b; output [6:0] y; wire [6:0] y; assign y = BODY;",
    ],
    ids=["ANSI", "wires", "older", "other order", "parameters", "big-endian"],
)
def test_ports(text, from_verilog):
    found = from_verilog(text.replace("BODY", "(a & 4'b1110) * b") + " endmodule\n", signed=False)
    np.testing.assert_array_equal(
        found.table, np.multiply.outer(np.arange(16) & 14, np.arange(8))
    )  # fmt: skip
    assert found.notes == ()


@needs_verilog
@pytest.mark.parametrize("bits", [8, 9, 16])
def test_signed_modules(bits, from_verilog):
    text = (
        f"module mul(input signed [4:0] a, input signed [2:0] b, output signed [{bits - 1}:0] y);\n"
        "assign y = a * b; endmodule"
    )
    for signed in (None, True):
        found = from_verilog(text, signed=signed)
        assert found == EXACT((5, 3), signed=True)
        assert len(found.notes) == 1


HIERARCHY = """
module half #(parameter W = 8) (input [W-1:0] a, input [1:0] b, output [W+1:0] y);
  assign y = a * b;
endmodule
module mul(input [3:0] a, input [3:0] b, output [7:0] y);
  wire [5:0] low, high;
  half #(.W(4)) l (.a(a), .b(b[1:0]), .y(low));
  half #(4) h (a, b[3:2], high);
  assign y = low + (high << 2);
  initial $display("17 said by the module");
endmodule
"""


@needs_verilog
def test_a_hierarchy(from_verilog):
    found = from_verilog(HIERARCHY)
    assert found == EXACT(4)
    assert found.name == "mul"
    part = from_verilog(HIERARCHY, module="half", name="part")
    assert part == EXACT((8, 2))
    assert part.name == "part"
    assert "circuit.v has no module whole; it has half, mul" in told(
        from_verilog, HIERARCHY, module="whole"
    )
    two = HIERARCHY + HIERARCHY.replace(" mul(", " other(").replace("half", "halves")
    assert told(from_verilog, two) == (
        "circuit.v has the modules half, mul, halves, other: say which, module=..."
    )


@needs_verilog
def test_a_file_that_includes_another(from_verilog, tmp_path):
    (tmp_path / "body.vh").write_text("assign y = a * b;")
    text = 'module mul(input [3:0] a, input [2:0] b, output [6:0] y);\n`include "body.vh"\n'
    assert from_verilog(text + "endmodule\n") == EXACT((4, 3))
    assert og.Multiplier.from_file(tmp_path / "circuit.v").name == "mul"


HEAD = "module mul(input [2:0] a, input [2:0] b, output [5:0] y);"


@needs_verilog
@pytest.mark.parametrize(
    ("text", "due"),
    [
        (f"{HEAD} assign y[4:0] = a * b; endmodule",
         "circuit.v: 64 results of mul are undefined (Z): an output bit is not driven"),
        (f"{HEAD} wire c; assign y = {{a * b, c & a[0]}}; endmodule",
         "circuit.v: 32 results of mul are undefined (X): an output bit is not driven"),
        (f"{HEAD} nosuch u(a, b, y); endmodule",
         "circuit.v does not elaborate; iverilog says:\n  "),
        (f"{HEAD} assign y = ; endmodule",
         "circuit.v does not elaborate; iverilog says:\n  "),
        (f"{HEAD} initial #9 $finish; endmodule",
         "circuit.v: the simulation of mul ended after 9 of 64 results: a multiplier has no "
         "$finish"),
        ("module mul(input clk, input [2:0] a, input [2:0] b, output [5:0] y); endmodule",
         "module mul has input clk, input a, input b, output y; two inputs and one output are"),
        ("module mul(inout [2:0] a, input [2:0] b, input [2:0] c, output [5:0] y); endmodule",
         "module mul has inout a, input b, input c, output y; two inputs and one output"),
        ("module mul; endmodule", "module mul has no ports that can be read; two inputs"),
        ("module mul(input [8:0] a, input b, output [5:0] y); assign y = a * b; endmodule",
         "module mul takes 9 and 1 bits; operands of 2 to 8 bits each are needed"),
        ("assign y = a * b;", "circuit.v holds no `module ... endmodule`"),
    ],
    ids=["Z", "X", "missing module", "syntax", "finish", "clock", "inout", "none", "wide", "empty"],
)  # fmt: skip
def test_modules_that_are_refused(text, due, from_verilog):
    message = told(from_verilog, text)
    assert message.startswith(due)
    if "nosuch" in text:
        assert "Unknown module type: nosuch" in message


@needs_verilog
def test_a_simulation_that_does_not_end(from_verilog, monkeypatch):
    monkeypatch.setattr(verilog, "_SECONDS", 1)
    assert told(from_verilog, f"{HEAD} initial forever; endmodule") == (
        "circuit.v does not simulate within 1 s"
    )


def test_what_to_install_is_told(from_verilog, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told(from_verilog, netlist(2, 2, 0)) == (
        "from_verilog needs Icarus Verilog, and there is no `iverilog` on the PATH; install it "
        "(Debian, Ubuntu: apt install iverilog; macOS: brew install icarus-verilog; conda: conda "
        "install -c conda-forge iverilog)"
    )
    missing = tmp_path / "no.v"
    assert told(og.Multiplier.from_verilog, missing) == f"there is no file {missing}"

"""Tables from Verilog, by Icarus Verilog: every pair of inputs is simulated."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from typing import NamedTuple

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.multipliers import codes

_SECONDS = 120


class _Ports(NamedTuple):
    first: str
    second: str
    output: str


def tabulated(path: str | os.PathLike, module: str = "") -> tuple[np.ndarray, str]:
    """The table of a module's output over the codes of its inputs, and the module's name."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise ArgumentError(f"there is no file {file}")
    for tool in ("iverilog", "vvp"):
        if shutil.which(tool) is None:
            raise ArgumentError(
                f"from_verilog needs Icarus Verilog, and there is no `{tool}` on the PATH; install "
                "it (Debian, Ubuntu: apt install iverilog; macOS: brew install icarus-verilog; "
                "conda: conda install -c conda-forge iverilog)"
            )
    name, body = _module(file, module)
    ports = _ports(name, body)
    rows, columns, result = _bits(file, name, ports)
    bench = _TESTBENCH.format(
        module=name, **ports._asdict(), rows=2**rows, columns=2**columns, top=result - 1
    )
    words = _simulated(file, bench)
    if len(words) != 2 ** (rows + columns):
        raise ArgumentError(
            f"{file.name}: the simulation of {name} ended after {len(words)} of "
            f"{2 ** (rows + columns)} results: a multiplier has no $finish"
        )
    unknown = [word for word in words if not word.isdigit()]
    if unknown:
        raise ArgumentError(
            f"{file.name}: {len(unknown)} results of {name} are undefined ({unknown[0]}): an "
            "output bit is not driven"
        )
    return np.array(words, np.int64).reshape(2**rows, 2**columns), name


_SIZES = """
module opgraft_testbench;
  {module} dut ();
  initial begin
    $display("opgraft %0d", $bits(dut.{first}));
    $display("opgraft %0d", $bits(dut.{second}));
    $display("opgraft %0d", $bits(dut.{output}));
    $finish;
  end
endmodule
"""

_TESTBENCH = """
module opgraft_testbench;
  reg [31:0] a, b;
  wire [{top}:0] y;
  {module} dut (.{first}(a), .{second}(b), .{output}(y));
  initial begin
    for (a = 0; a < {rows}; a = a + 1)
      for (b = 0; b < {columns}; b = b + 1) begin
        #1 $display("opgraft %0d", y);
      end
    $finish;
  end
endmodule
"""


def _module(file: pathlib.Path, wanted: str) -> tuple[str, str]:
    """The name and the text of the module."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", file.read_text(errors="replace"), flags=re.S)
    found = dict(re.findall(r"\bmodule\s+(\w+)(.*?)\bendmodule\b", text, re.S))
    if not found:
        raise ArgumentError(f"{file.name} holds no `module ... endmodule`")
    used = {
        name
        for name in found
        for body in found.values()
        if re.search(rf"\b{name}\s+(?:#\s*\(.*?\)\s*)?\w+\s*\(", body, re.S)
    }
    tops = [name for name in found if name not in used]
    if wanted and wanted not in found:
        raise ArgumentError(f"{file.name} has no module {wanted}; it has {', '.join(found)}")
    if not wanted and len(tops) != 1:
        raise ArgumentError(
            f"{file.name} has the modules {', '.join(found)}: say which, module=..."
        )
    name = wanted or tops[0]
    return name, found[name]


def _ports(module: str, body: str) -> _Ports:
    """Both inputs in order of the ports, and the output."""
    head = _without_brackets(body.partition(";")[0])
    order = re.findall(r"(\w+)\s*(?=[,)])", head)
    ways: dict[str, str] = {}
    for way, names in re.findall(
        r"\b(input|output|inout)\b((?:\s*,?\s*\b(?!(?:input|output|inout)\b)\w+)*)",
        _without_brackets(body),
    ):
        listed = names.split(",")
        ways |= {each.split()[-1]: way for each in listed if each.split()}
    ports = [name for name in order if name in ways]
    inputs = [name for name in ports if ways[name] == "input"]
    outputs = [name for name in ports if ways[name] == "output"]
    if len(inputs) != 2 or len(outputs) != 1 or len(ports) != 3:
        told = ", ".join(f"{ways[name]} {name}" for name in ports) or "no ports that can be read"
        raise ArgumentError(f"module {module} has {told}; two inputs and one output are needed")
    return _Ports(*inputs, *outputs)


def _without_brackets(text: str) -> str:
    return re.sub(r"\[[^\]]*\]", " ", text)


def _bits(file: pathlib.Path, module: str, ports: _Ports) -> tuple[int, int, int]:
    """How wide the ports are, which may depend on parameters."""
    bench = _SIZES.format(module=module, **ports._asdict())
    words = _simulated(file, bench)
    if len(words) != 3:
        raise ArgumentError(f"{file.name}: the simulation of {module} ends before it begins")
    first, second, output = map(int, words)
    if not all(codes.NARROWEST <= bits <= codes.WIDEST for bits in (first, second)):
        raise ArgumentError(
            f"module {module} takes {first} and {second} bits; operands of {codes.NARROWEST} to "
            f"{codes.WIDEST} bits each are needed"
        )
    return first, second, output


def _simulated(file: pathlib.Path, bench: str) -> list[str]:
    """What the testbench displays; the module may say something, too."""
    with tempfile.TemporaryDirectory(prefix="opgraft-verilog-") as folder:
        source, binary = os.path.join(folder, "testbench.v"), os.path.join(folder, "simulation")
        pathlib.Path(source).write_text(bench)
        _run(file, "elaborate", ["iverilog", "-g2012", "-s", "opgraft_testbench", "-o", binary,
                                 "-I", str(file.parent), source, str(file)])  # fmt: skip
        said = _run(file, "simulate", ["vvp", "-n", binary])
    return re.findall(r"^opgraft (\w+)$", said, re.M)


def _run(file: pathlib.Path, what: str, command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ArgumentError(f"{file.name} does not {what} within {_SECONDS} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = "\n  ".join(lines[:8])
        raise ArgumentError(f"{file.name} does not {what}; {command[0]} says:\n  {said}")
    return done.stdout

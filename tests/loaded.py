"""C functions that tests write down, and their symbols."""

import pathlib
from collections.abc import Callable

import opgraft as og
from opgraft.products import CSymbol

TESTS = pathlib.Path(__file__).parent
KERNELS = pathlib.Path(og.__file__).parent / "kernels"


def product(before="", after="", *, operand="float", result="float", returns="void", sum="sum"):
    """A matrix product in C that does something else before and after its loops."""
    return f"""#include <assert.h>
#include <float.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
{returns} mm(const {operand} *a, const {operand} *b, int m, int k, int n, {result} *out) {{
  {before};
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {{
      {result} sum = 0;
      for (int l = 0; l < k; l++) sum += ({result})a[i * k + l] * b[l * n + j];
      out[i * n + j] = {sum};
    }}
  {after};
}}
"""


def loader(compile_c) -> Callable[..., CSymbol]:
    """A function: the text of a C source, or a path -> its symbol."""

    def load(source, prototype=None, **options) -> CSymbol:
        is_text = isinstance(source, str)
        path = compile_c(source) if is_text else source
        return og.c_function(path, prototype, **options).product.symbols[0]

    return load

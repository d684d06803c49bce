"""Reading a pasted C prototype, and binding its parameters by name."""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence

from opgraft.errors import PrototypeError
from opgraft.native import roles as names

# C type names to the core's; `long` as on every 64-bit Unix.
_TYPES = {
    "float": "f32", "double": "f64",
    "char": "i8", "signed char": "i8", "unsigned char": "u8", "_Bool": "u8",
    "short": "i16", "unsigned short": "u16", "int": "i32", "unsigned int": "u32",
    "long": "i64", "unsigned long": "u64", "long long": "i64", "unsigned long long": "u64",
    "int8_t": "i8", "int16_t": "i16", "int32_t": "i32", "int64_t": "i64",
    "uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64",
    "size_t": "u64", "ssize_t": "i64", "ptrdiff_t": "i64", "intptr_t": "i64", "uintptr_t": "u64",
}  # fmt: skip
_QUALIFIERS = {"const", "volatile", "struct", "union", "enum", "register", "void"}
_UNNAMED = "#"  # before the position of a parameter without a name
_IGNORED = r"\b(__restrict__|__restrict|restrict|__inline__|__inline|inline|static|extern)\b"


@dataclasses.dataclass(frozen=True)
class CType:
    """`dtype` in the core's names, or "" for void."""

    dtype: str
    pointer: bool = False
    const: bool = False
    text: str = ""  # as the user wrote it


@dataclasses.dataclass(frozen=True)
class CPrototype:
    """A C function: name, return type, and (name, type) of each parameter."""

    symbol: str
    returns: CType
    parameters: tuple[tuple[str, CType], ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Bound:
    """A prototype whose parameters have roles. `plan` is what the core reads."""

    prototype: CPrototype
    kind: str
    plan: str


def parse(text: str) -> list[CPrototype]:
    """Every function declared in `text`, in its order.

    Raises:
        PrototypeError: the text is no C declaration, or uses a type that cannot be passed.
    """
    from pycparser import c_ast, c_parser  # slow to import, and rarely needed

    cleaned = _clean(text)
    typedefs = "".join(f"typedef int {name};" for name in _TYPES if name.endswith("_t"))
    try:
        tree = c_parser.CParser().parse(f'{typedefs}\n#line 1 "prototype"\n{cleaned};')
    except Exception as error:
        raise PrototypeError(
            f"the prototype does not parse: {error}\n  {cleaned}\n{_unknown_types(cleaned)}"
            'Paste the declaration as it stands in the header, such as "void mm(const float *a, '
            'const float *b, int m, int k, int n, float *out)"'
        ) from None
    found = [
        _prototype(node)
        for node in tree.ext
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl)
    ]
    if not found:
        raise PrototypeError(f"there is no function declaration in the prototype\n  {text.strip()}")
    return found


def _clean(text: str) -> str:
    """Declarations alone: no comments, directives, bodies, nor what only compilers read."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", " ", text, flags=re.M)
    text = _without_nested(text, r"__attribute__\s*\(", "()", " ")
    text = re.sub(r'extern\s+"C"\s*\{?', " ", text)
    text = _without_nested(text, r"(?<=\))\s*\{", "{}", ";")
    text = re.sub(_IGNORED, "", text).replace("}", " ")
    text = re.sub(r"\bbool\b", "_Bool", text)
    return re.sub(r"(;\s*)+", "; ", " ".join(text.split())).strip("; ")


def _without_nested(text: str, opening: str, brackets: str, instead: str) -> str:
    """`text` without every part from `opening` to the bracket that closes it, however deep."""
    while match := re.search(opening, text):
        start = match.end() - 1
        depth, end = 0, len(text)
        for position in range(start, len(text)):
            depth += (text[position] == brackets[0]) - (text[position] == brackets[1])
            if depth == 0:
                end = position + 1
                break
        text = text[: match.start()] + instead + text[end:]
    return text


def _unknown_types(cleaned: str) -> str:
    """A hint for the usual reason why a declaration does not parse."""
    words = set()
    for parameter in re.split(r"[(,;]", cleaned):
        names = [w for w in re.findall(r"[A-Za-z_]\w*", parameter) if w not in _QUALIFIERS]
        known = {part for name in _TYPES for part in name.split()} | {"signed"}
        if len(names) > 1 and names[0] not in known:
            words.add(names[0])
    if not words:
        return ""
    known_types = ", ".join(_TYPES)
    return f"Unknown types: {', '.join(sorted(words))}. Those that can be passed: {known_types}. "


def _prototype(node) -> CPrototype:
    from pycparser import c_ast, c_generator

    returns = _type(node.type.type, f"the return value of {node.name}")
    parameters = []
    for position, parameter in enumerate(node.type.args.params if node.type.args else []):
        if isinstance(parameter, c_ast.EllipsisParam):
            raise PrototypeError(f"{node.name} is variadic (...); declare all its parameters")
        if isinstance(parameter, c_ast.ID):
            raise PrototypeError(
                f"parameter '{parameter.name}' of {node.name} has no type; write it, such as "
                f"`const float *{parameter.name}`"
            )
        if isinstance(parameter.type, c_ast.TypeDecl) and _base_name(parameter.type) == "void":
            continue
        name = parameter.name or f"{_UNNAMED}{position + 1}"
        where = f"parameter '{name}' of {node.name}"
        parameters.append((name, _type(parameter.type, where)))
    text = " ".join(c_generator.CGenerator().visit(node).split())
    return CPrototype(node.name, returns, tuple(parameters), text)


def _base_name(declaration) -> str:
    from pycparser import c_ast

    base = declaration.type
    if not isinstance(base, c_ast.IdentifierType):
        return type(base).__name__.lower()
    return _ordered(base.names)


def _ordered(words: Sequence[str]) -> str:
    """The name of a C type whose specifiers may come in any order, `int` often left out."""
    rest = [w for w in words if w not in ("signed", "unsigned", "int", "long", "short")]
    unsigned = "unsigned " if "unsigned" in words else ""
    if rest:
        sign = "signed " if rest == ["char"] and "signed" in words else unsigned
        return sign + "long " * words.count("long") + " ".join(rest)
    size = " ".join(["short"] * words.count("short") + ["long"] * words.count("long"))
    return unsigned + (size or "int")


def _type(node, where: str) -> CType:
    from pycparser import c_ast

    pointers = 0
    while isinstance(node, c_ast.PtrDecl | c_ast.ArrayDecl):
        pointers += 1
        node = node.type
    if not isinstance(node, c_ast.TypeDecl):
        raise PrototypeError(f"{where} is a pointer to a function, which cannot be passed")
    name = _base_name(node)
    const = "const " if "const" in node.quals else ""
    text = f"{const}{name}{' ' + '*' * pointers if pointers else ''}"
    if name == "void" and not pointers and where.startswith("the return"):
        return CType("", text="void")
    if pointers > 1 or name not in _TYPES:
        raise PrototypeError(
            f"{where} has the type `{text}`, which cannot be passed. Types that can: "
            f"{', '.join(_TYPES)}, a pointer to one of them, and const char * for padding"
        )
    return CType(_TYPES[name], bool(pointers), "const" in node.quals, text)


# ---- binding ---------------------------------------------------------------------


def bind(prototype: CPrototype, roles: Mapping[str, str] | Sequence[str] | None = None) -> Bound:
    """Give every parameter its role.

    Args:
        roles: {parameter name: role} for names that are not standard, or the
            roles of all parameters in order.

    Raises:
        PrototypeError: a parameter is unknown or bound twice, a role that the
            function cannot do without is missing, or a type is wrong.
    """
    given = _given_roles(prototype, roles)
    if _is_scalar(prototype):
        (_, left), (_, right) = prototype.parameters
        return _scalar(prototype, left, right)
    best = _best_attempt(
        _Attempt(prototype, given, "matmul", names.MATMUL, names.MATMUL_NEEDS),
        _Attempt(prototype, given, "conv2d", names.CONV2D, names.CONV2D_NEEDS),
    )
    _check_types(prototype, best.roles)
    return Bound(prototype, best.kind, _plan(prototype, best.roles))


def bind_vjp(
    prototype: CPrototype, roles: Mapping[str, str] | Sequence[str] | None = None
) -> Bound:
    """As `bind`, of a function that computes gradients; the kind is matmul_vjp or conv2d_vjp."""
    given = _given_roles(prototype, roles)
    pointers = names.POINTERS | names.VJP_POINTERS
    best = _best_attempt(
        _Attempt(prototype, given, "matmul_vjp", names.MATMUL, names.MATMUL_VJP_NEEDS, pointers),
        _Attempt(prototype, given, "conv2d_vjp", names.CONV2D, names.CONV2D_VJP_NEEDS, pointers),
    )
    _check_vjp_types(prototype, best.roles)
    return Bound(prototype, best.kind, _plan(prototype, best.roles))


def _best_attempt(*attempts: "_Attempt") -> "_Attempt":
    """The reading of a prototype that has no problems, or an error that says the fewest."""
    prototype = attempts[0].prototype
    for name, _ in prototype.parameters:
        if name.startswith(_UNNAMED):
            raise PrototypeError(
                f"parameter {name.removeprefix(_UNNAMED)} of {prototype.symbol} has no name; "
                "parameters are bound by name, so write one, such as `const float *a`"
            )
    best = min(attempts, key=lambda attempt: len(attempt.problems))
    if best.problems:
        raise PrototypeError(
            f"{prototype.symbol} cannot be bound as a {best.kind}:\n  - "
            + "\n  - ".join(best.problems)
            + f"\nPrototype: {prototype.text}\n"
            f"Name a parameter with roles={{'name': 'role'}}. Known pointers: "
            f"{names.describe(best.pointers)}. Known numbers of a {best.kind}: "
            f"{names.describe(best.table)}. Text: padding"
        )
    return best


def _given_roles(prototype, roles) -> dict[str, str]:
    parameters = [name for name, _ in prototype.parameters]
    if roles is None:
        return {}
    if isinstance(roles, str) or not isinstance(roles, Mapping | Sequence):
        raise PrototypeError(
            f"roles={roles!r} must be a mapping of parameter names to roles, or a list of all roles"
        )
    for role in roles.values() if isinstance(roles, Mapping) else roles:
        if not isinstance(role, str):
            raise PrototypeError(f"roles={roles!r}: a role is a name, not {role!r}")
    if not isinstance(roles, Mapping):
        if len(roles) != len(parameters):
            raise PrototypeError(
                f"roles has {len(roles)} names, {prototype.symbol} has {len(parameters)} parameters"
            )
        return dict(zip(parameters, roles, strict=True))
    for name in roles:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, 1)
            raise PrototypeError(
                f"roles names '{name}', but {prototype.symbol} has no such parameter"
                f"{f' (did you mean {near[0]!r}?)' if near else ''}; it has: "
                f"{', '.join(parameters)}"
            )
    return dict(roles)


def _is_scalar(prototype: CPrototype) -> bool:
    types = [ctype for _, ctype in prototype.parameters]
    return len(types) == 2 and not any(ctype.pointer for ctype in types)


def _scalar(prototype: CPrototype, left: CType, right: CType) -> Bound:
    if left.dtype != right.dtype:
        raise PrototypeError(
            f"{prototype.symbol} multiplies `{left.text}` by `{right.text}`; both operands must "
            "have one type. Wrap it in a function that casts"
        )
    if not prototype.returns.dtype or prototype.returns.pointer:
        raise PrototypeError(
            f"{prototype.symbol} returns `{prototype.returns.text}`; a scalar product returns "
            "a number"
        )
    plan = f"{prototype.returns.dtype} input:{left.dtype} kernel:{right.dtype}"
    return Bound(prototype, "scalar", plan)


class _Attempt:
    """One try to read a prototype as a certain kind of function."""

    def __init__(
        self,
        prototype: CPrototype,
        given: Mapping[str, str],
        kind: str,
        table: dict[str, str],
        needs: Sequence[str],
        pointers: dict[str, str] = names.POINTERS,
    ) -> None:
        self.prototype, self.kind, self.table, self.pointers = prototype, kind, table, pointers
        self.roles: dict[str, str] = {}
        self.problems: list[str] = []
        for name, ctype in prototype.parameters:
            self._bind(name, ctype, given.get(name))
        for role in needs:
            if role not in self.roles.values():
                aliases = {**pointers, **table}[role].split()
                self.problems.append(f"no parameter gives {role} (names: {', '.join(aliases)})")

    def _bind(self, name: str, ctype: CType, given: str | None) -> None:
        table = self.table
        if ctype.pointer:
            is_text = ctype.dtype == "i8" and names.find(names.TEXTS, given or name)
            table = names.TEXTS if is_text else self.pointers
        role = names.find(table, given or name)
        if role is None:
            said = f"role '{given}' of parameter '{name}'" if given else f"parameter '{name}'"
            self.problems.append(f"{said} (`{ctype.text}`) is not known")
        elif role in self.roles.values():
            other = next(key for key, value in self.roles.items() if value == role)
            self.problems.append(f"'{other}' and '{name}' are both bound to {role}")
        else:
            self.roles[name] = role


def _check_types(prototype: CPrototype, roles: Mapping[str, str]) -> None:
    by_role = {roles[name]: ctype for name, ctype in prototype.parameters}
    left, right, out = by_role["input"], by_role["kernel"], by_role["output"]
    if left.dtype != right.dtype:
        raise PrototypeError(
            f"{prototype.symbol} takes `{left.text}` as input and `{right.text}` as kernel; the "
            "element types of both operands must be the same"
        )
    if out.const:
        raise PrototypeError(
            f"{prototype.symbol} takes its output as `{out.text}`; an output cannot be const"
        )
    _check_return(prototype)


def _check_vjp_types(prototype: CPrototype, roles: Mapping[str, str]) -> None:
    pointers = {roles[name]: ctype for name, ctype in prototype.parameters
                if ctype.pointer and roles[name] != "padding"}  # fmt: skip
    if not pointers.keys() & {"grad_input", "grad_kernel"}:
        raise PrototypeError(
            f"{prototype.symbol} writes no gradient: it has neither grad_input "
            f"({names.VJP_POINTERS['grad_input']}) nor grad_kernel "
            f"({names.VJP_POINTERS['grad_kernel']})"
        )
    if len({ctype.dtype for ctype in pointers.values()}) > 1 or pointers["upstream"].dtype not in (
        "f32", "f64",
    ):  # fmt: skip
        raise PrototypeError(
            f"{prototype.symbol} has the pointers "
            f"{', '.join(f'`{ctype.text}`' for ctype in pointers.values())}; those of a gradient "
            "must all be float, or all double"
        )
    for role in ("grad_input", "grad_kernel"):
        if role in pointers and pointers[role].const:
            raise PrototypeError(
                f"{prototype.symbol} takes {role} as `{pointers[role].text}`; it is written, and "
                "cannot be const"
            )
    _check_return(prototype)


def _check_return(prototype: CPrototype) -> None:
    if prototype.returns.dtype not in ("", "i32") or prototype.returns.pointer:
        raise PrototypeError(
            f"{prototype.symbol} returns `{prototype.returns.text}`; it must return void, or int "
            "where any value but 0 is an error"
        )


def _plan(prototype: CPrototype, roles: Mapping[str, str]) -> str:
    words = [prototype.returns.dtype or "void"]
    for name, ctype in prototype.parameters:
        role = roles[name]
        kind = "text" if role == "padding" else ctype.dtype + ("*" if ctype.pointer else "")
        words.append(f"{role}:{kind}")
    return " ".join(words)

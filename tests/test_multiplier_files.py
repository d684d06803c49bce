"""Tables in files: every format, and what is said of a file that holds none."""

import os

import numpy as np
import pytest

import opgraft as og
from opgraft.errors import ArgumentError
from opgraft.multipliers import files, names

rng = np.random.default_rng(20265)


def signed_table(m=4, n=3):
    """Not symmetric, and not exact."""
    left, right = (np.roll(np.arange(-(2 ** (w - 1)), 2 ** (w - 1)), 2 ** (w - 1)) for w in (m, n))
    table = np.multiply.outer(left, right)
    table[1:, 1:] += rng.integers(0, 2, table[1:, 1:].shape)
    return table


def unsigned_table(m=3, n=4):
    table = np.multiply.outer(np.arange(2**m), np.arange(2**n))
    return table + rng.integers(0, 2, table.shape)


def refused(path, **keywords):
    with pytest.raises(ArgumentError) as error:
        og.Multiplier.from_file(path, **keywords)
    return str(error.value)


# ---- NumPy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "float32"])
def test_an_array(dtype, tmp_path):
    table = signed_table()
    path = tmp_path / "mul4x3s_mine.npy"
    np.save(path, table.astype(dtype))
    for given in (path, str(path), os.fsencode(path)):
        found = og.Multiplier.from_file(given)
        assert found == og.Multiplier.from_array(table, signed=True)
        assert found.name == "mul4x3s_mine"
        assert "taken for signed" in found.notes[0]
    cost = og.multipliers.Cost(power=1.5)
    found = og.Multiplier.from_file(path, signed=True, name="mine", cost=cost)
    assert (found.name, found.cost, found.notes) == ("mine", cost, ())
    by_number = tmp_path / "ascending.npy"
    np.save(by_number, np.roll(table, (8, 4), (0, 1)))
    assert og.Multiplier.from_file(by_number, ascending=True) == found
    assert "signed=False, and the table holds" in refused(path, signed=False)


def test_one_of_several_arrays(tmp_path):
    path, first, second = tmp_path / "all.npz", unsigned_table(), signed_table()
    np.savez(path, first=first, second=second)
    assert files.keys(path) == [f"{path}:first", f"{path}:second"]
    for text, table, signed in (("first", first, False), ("second", second, True)):
        found = og.Multiplier.from_file(f"{path}:{text}")
        assert found == og.Multiplier.from_array(table, signed=signed)
        assert found.name == text
    assert refused(path) == "all.npz holds first, second: choose one, such as all.npz:first"
    assert refused(f"{path}:third").startswith("all.npz holds first, second: choose one")
    assert [each.name for each in names.read(str(path))] == ["first", "second"]
    alone = tmp_path / "alone.npz"
    np.savez(alone, table=first)
    assert og.Multiplier.from_file(alone).name == "alone"
    np.savez(alone)
    assert refused(alone) == "alone.npz holds no array"


def test_files_that_are_no_arrays(tmp_path):
    bad = tmp_path / "bad.npy"
    bad.write_text("no array")
    assert refused(bad).startswith("bad.npy is no NumPy file: ")
    bad.write_bytes(b"")
    assert refused(bad).startswith("bad.npy is no NumPy file: ")
    bad.write_bytes(b"PK\x03\x04 and no more")
    assert refused(bad).startswith("bad.npy is no NumPy file: ")
    np.save(bad, np.array([{}]), allow_pickle=True)
    assert "bad.npy is no NumPy file: " in refused(bad)
    np.save(bad, np.zeros((3, 4)))
    assert refused(bad).startswith("bad.npy: the table has 3 rows; it must have 2^bits of them")
    np.save(bad, np.full((4, 4), 1e10))
    assert refused(bad) == "bad.npy: the table holds numbers beyond 2^31, which no such product has"
    np.save(bad, np.full((4, 4), "x"))
    assert refused(bad).startswith("bad.npy: the table holds <U1; it must hold integers or floats")
    archive = tmp_path / "bad.npz"
    np.savez(archive, table=np.array([None]))
    assert refused(f"{archive}:table").startswith("bad.npz: table cannot be read: ")
    archive.write_bytes(archive.read_bytes()[:-30])
    assert refused(f"{archive}:table").startswith("bad.npz is no NumPy file: ")
    swapped = tmp_path / "array.npz"
    swapped.write_bytes(bad.read_bytes())
    assert refused(swapped) == "array.npz holds one array alone; its name must end in .npy"
    np.savez(archive, table=np.zeros((4, 4)))
    bad.write_bytes(archive.read_bytes())
    assert refused(bad) == "bad.npy holds several arrays; its name must end in .npz"


# ---- TFApprox, AdaPT -----------------------------------------------------------------------


@pytest.mark.parametrize("signed", [False, True])
def test_words_of_sixteen_bits(signed, tmp_path):
    path = tmp_path / "mul8.bin"
    table = signed_table(8, 8) if signed else unsigned_table(8, 8)
    path.write_bytes((table & 0xFFFF).astype("<u2").tobytes())
    due = og.Multiplier.from_array(table, signed=signed)
    assert og.Multiplier.from_file(path) == due
    assert og.Multiplier.from_file(path, signed=signed) == due
    assert due.table[3, 200] == int.from_bytes(path.read_bytes()[2 * (3 * 256 + 200) :][:2],
                                               "little", signed=signed)  # fmt: skip
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(path) == (
        "mul8.bin has 131071 bytes; a table of 256 x 256 16-bit numbers has 131072"
    )


def header(table, title="const int16_t lut"):
    rows = ",\n".join("{" + ", ".join(map(str, row)) + "}" for row in table.tolist())
    return f"{title} [{table.shape[0]}][{table.shape[1]}] = {{{rows}}};\n"


def test_a_c_header(tmp_path):
    path, table = tmp_path / "mul4x3s.h", signed_table()
    comments = "/* a table [4][4] = {1}; */\n// not [3][2] = {7};\n#include <stdint.h>\n"
    path.write_text(comments + header(table))
    found = og.Multiplier.from_file(path)
    assert found == og.Multiplier.from_array(table, signed=True)
    assert (found.name, found.notes) == ("mul4x3s", ())  # a negative number says it
    path.write_text(header(np.roll(table, (8, 4), (0, 1))))
    assert og.Multiplier.from_file(path, ascending=True) == found
    unsigned = unsigned_table()
    path.write_text(header(unsigned, "static unsigned short const table"))
    assert og.Multiplier.from_file(path) == og.Multiplier.from_array(unsigned, signed=False)


def test_numbers_as_c_writes_them(tmp_path):
    path = tmp_path / "odd.hpp"
    path.write_text(
        "short f[4][4] = {{0x0, 00, 0, 0}, {0, 1u, 2, +3}, {0, 2, 4, 06}, {0, 3, 6, 011}};"
    )
    found = og.Multiplier.from_file(path)
    assert found == og.multipliers.exact(2)
    path.write_text("short f[4][4] = {{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 2, 4, 6}, {0, 3, 6, 09}};")
    assert refused(path) == "09 is no number in C"


def test_headers_that_hold_no_table(tmp_path):
    path, table = tmp_path / "bad.h", signed_table()
    path.write_text("int n = 3;")
    assert refused(path) == "bad.h holds no `type table[256][256] = {...};`"
    path.write_text(header(table).replace("[16]", "[32]"))
    assert refused(path) == (
        "bad.h: lut is declared as [32][8], and 128 numbers are given where 256 are needed"
    )
    path.write_text("int f[3][4] = {{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 2, 4, 6}};")
    assert refused(path).startswith("bad.h: the table has 3 rows")
    path.write_text(header(table * 10**9))
    assert refused(path).startswith("bad.h: the table holds numbers beyond 2^31")


# ---- text ----------------------------------------------------------------------------------


def lines(table, numbers, separator):
    pairs = [(a, b) for a in numbers[0] for b in numbers[1]]
    return [separator.join(map(str, (a, b, table[a, b]))) for a, b in pairs]


@pytest.mark.parametrize("separator", [" ", ",", ";", "\t", ", "])
@pytest.mark.parametrize("order", ["codes", "ascending", "shuffled"])
def test_lines_of_two_numbers_and_their_product(order, separator, tmp_path):
    path, table = tmp_path / "mine.txt", signed_table()
    numbers = [list(range(-8, 8)), list(range(-4, 4))]
    if order == "codes":
        numbers = [list(range(16)), list(range(8))]
    text = lines(table, numbers, separator)
    if order == "shuffled":
        rng.shuffle(text)
    path.write_text("# by hand\n\na b product\n" + "  # so\n".join(text) + "\n")
    found = og.Multiplier.from_file(path)
    assert found == og.Multiplier.from_array(table, signed=True)
    assert found.name == "mine"
    assert bool(found.notes) is (order == "codes")  # else the numbers say it
    path.rename(tmp_path / "mine.csv")
    assert og.Multiplier.from_file(tmp_path / "mine.csv") == found


def test_unsigned_lines_and_other_writings_of_numbers(tmp_path):
    path, table = tmp_path / "mine.txt", unsigned_table()
    text = [
        f"{a:#x} 0{b}.0 {table[a, b]:.1f}" if a else f"{a} {b} +{table[a, b]}"
        for a in range(8)
        for b in range(16)
    ]
    path.write_text("\n".join(text))
    assert og.Multiplier.from_file(path) == og.Multiplier.from_array(table, signed=False)


def test_lines_that_hold_no_table(tmp_path):
    path, table = tmp_path / "bad.txt", unsigned_table()
    text = lines(table, (range(8), range(16)), " ")

    def told(changed):
        path.write_text("\n".join(changed))
        return refused(path)

    assert told([]) == 'bad.txt holds no line "a b product"'
    assert told(["a b", "1 2 3 4"]) == 'bad.txt, line 2: "1 2 3 4" is no "a b product"'
    assert told([*text[:5], "5 5", *text[5:]]) == 'bad.txt, line 6: "5 5" is no "a b product"'
    for word in ("two", "2.5", "nan", "inf", "1e30", str(2**70)):
        line = f"0 5 {word}"
        message = told([*text[:5], line, *text[6:]])
        assert message == f'bad.txt, line 6: "{line}" is no "a b product"'
    assert told([*text[:37], *text[38:]]) == (
        "bad.txt: the pair with the codes 2, 5 is missing; one line is needed for each of the "
        "8 x 16 pairs"
    )
    assert "the codes 2, 5 is given more than once" in told([*text, text[37]])
    assert told([*text, "300 0 0"]) == (
        "bad.txt: operands reach from 0 to 300, which are more than 8 bits"
    )
    assert told([*text, "0 -129 0"]) == (
        "bad.txt: operands reach from -129 to 15, which are more than 8 bits with a sign"
    )
    assert told(["0 0 0", "0 1 0", "1 0 0", "1 1 1"]).startswith("bad.txt: the table has 2 rows")


# ---- which file ----------------------------------------------------------------------------


def test_files_that_are_none(tmp_path):
    assert refused(tmp_path / "no.npy") == f"there is no file {tmp_path / 'no.npy'}"
    assert refused(tmp_path) == f"there is no file {tmp_path}"
    assert refused(f"{tmp_path}/no.npz:key") == f"there is no file {tmp_path / 'no.npz'}"
    assert refused(3) == "3 is no path of a file"
    other = tmp_path / "table.mat"
    other.write_text("")
    assert refused(other) == (
        "table.mat: tables are read from .npy, .npz, .bin, .h, .hpp, .txt, .csv, .c, .so, .v; for "
        "another format read it yourself and give og.Multiplier.from_array(table)"
    )
    text = tmp_path / "table.txt"
    text.write_text("0 0 0")
    assert refused(text, ascending=True) == (
        "table.txt: ascending=True is for tables in .npy, .npz, .bin, .h, .hpp"
    )


# ---- names of a command line -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("mitchell", og.multipliers.mitchell()),
        ("drum:4", og.multipliers.drum(4)),
        ("drum:k=3,widths=8x5", og.multipliers.drum(3, (8, 5))),
        ("exact:4", og.multipliers.exact(4)),
        ("truncated:columns=4", og.multipliers.truncated(columns=4)),
        ("broken-array:1,0,3", og.multipliers.broken_array(1, 0, 3)),
        ("broken_array:v=2, widths=6", og.multipliers.broken_array(v=2, widths=6)),
        ("kulkarni:", og.multipliers.kulkarni()),
    ],
)
def test_a_family_by_its_name(text, due):
    (found,) = names.read(text)
    assert found == due
    assert found.name == due.name


def test_a_signed_family_by_its_name():
    assert names.read("exact:4", True) == [og.multipliers.exact(4, signed=True)]
    assert names.read("broken_array:0,0,4", True) == [
        og.multipliers.broken_array(0, 0, 4, signed=True)
    ]
    assert names.read("roba", True) == [og.multipliers.sign_magnitude(og.multipliers.roba())]
    assert names.read("roba", False) == [og.multipliers.roba()]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mitchel", "there is neither a file nor a family mitchel; families are exact, truncated"),
        ("drum", "drum: missing a required argument: 'k'; drum takes k, widths"),
        ("drum:9", "drum:9: 9 bits: a whole number from 2 to 8 is needed"),
        ("drum:four", "drum:four: four is no number, such as 4, or widths, 8x4"),
        ("drum:k=", "drum:k=: nothing is no number"),
        ("mitchell:columns=4", "mitchell:columns=4: got an unexpected keyword argument 'columns'"),
        ("exact:4,5", "exact:4,5: too many positional arguments; exact takes widths"),
        ("exact:8x9", "exact:8x9: widths=(8, 9) must be a number of bits from 2 to 8"),
        ("exact:2x3x4", "is no number"),
        ("no/drum:4", "there is no file no/drum:4"),
    ],
)
def test_names_that_are_none(text, told):
    with pytest.raises(ArgumentError) as error:
        names.read(text)
    assert told in str(error.value)


def test_a_file_goes_before_a_family(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mitchell").write_text("")
    with pytest.raises(ArgumentError, match="mitchell: tables are read from"):
        names.read("mitchell")

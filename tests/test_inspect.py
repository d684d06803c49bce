"""The command `opgraft inspect`: its table, its warnings, its files and its picture."""

import json
import re

import numpy as np
import pytest
from matplotlib import image
from typer.testing import CliRunner

import opgraft as og
from opgraft import cli, cli_inspect
from opgraft.multipliers import picture

MINUS = "\N{MINUS SIGN}"


@pytest.fixture(params=[80])
def width(request, monkeypatch):
    """The terminal's, for standard output and for complaints."""
    for each in (cli_inspect.console, cli_inspect.complaints):
        monkeypatch.setattr(each, "_width", request.param)
    return request.param


def opgraft(*arguments):
    """Run the command line here: the exit code, standard output and standard error."""
    result = CliRunner().invoke(cli.app, ["inspect", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def inspected(*arguments):
    code, out, error = opgraft(*arguments)
    assert (code, error) == (0, "")
    return out


def refused(*arguments):
    code, out, error = opgraft(*arguments)
    assert code == 2
    assert out == ""
    return " ".join(error.split())


def rows_of(out):
    """Every table's rows, as a dictionary from the name to that from title to cell."""
    found = {}
    for block in out.split("\n\n"):
        lines = block.splitlines()
        if not lines or not lines[0].startswith("name "):
            continue
        ends = [match.end() for match in re.finditer(r"\S+(?: error)?", lines[0])]
        titles = re.findall(r"\S+(?: error)?", lines[0])
        for line in lines[1:]:
            cells = re.split(r" {2,}", line.strip())
            assert len(line.rstrip()) <= max(ends) + 8
            found.setdefault(cells[0], {}).update(zip(titles, cells, strict=True))
    return found


@pytest.fixture
def circuits(tmp_path):
    """A file of two tables: a signed one, and one that surprises in every way."""
    odd = np.multiply.outer(np.arange(64), np.arange(64)) + 3
    odd[7, 9] += 5
    path = tmp_path / "circuits.npz"
    signed = og.multipliers.broken_array(2, 0, 5, widths=6, signed=True).table
    np.savez(path, mul6s_A=signed.astype(np.int16), mul6u_B=odd)
    return path


# ---- the table -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 200], indirect=True)
def test_the_table_has_the_facts_of_each(circuits, width):
    out = inspected(circuits, "drum:4,widths=8x5")
    assert max(map(len, out.splitlines())) <= width
    assert out.count("name ") == (1 if width == 200 else 2)
    rows = rows_of(out)
    assert list(rows) == ["mul6s_A", "mul6u_B", "DRUM-4 8x5"]
    assert rows["mul6s_A"] == {
        "name": "mul6s_A", "type": "signed 6x6", "MAE": "32.18", "WCE": "161", "MSE": "1770",
        "mean error": "-16.25", "rank": "4", "MAE%": "0.7858", "WCE%": "3.931", "WCRE%": "6500",
        "EP%": "91.02", "MRE%": "43.92",
    }  # fmt: skip
    metrics = og.Multiplier.from_file(f"{circuits}:mul6s_A").metrics()
    assert rows["mul6s_A"]["MAE"] == f"{metrics['MAE']:.4g}"
    assert rows["mul6s_A"]["MSE"] == f"{metrics['MSE']:.4g}"
    large = og.multipliers.mitchell().metrics()["MSE"]
    assert rows_of(inspected("mitchell"))["Mitchell 8x8"]["MSE"] == f"{large:,.0f}" == "974,070"
    assert rows["DRUM-4 8x5"]["type"] == "unsigned 8x5"
    assert rows["DRUM-4 8x5"]["MAE"] == f"{og.multipliers.drum(4, (8, 5)).metrics()['MAE']:.4g}"


def test_surprises_are_told_below(circuits, width):
    out = inspected(circuits)
    assert max(map(len, out.splitlines())) <= width
    told = " ".join(out.partition("\n\nmul6s_A\n")[2].split())
    assert told == (
        "- f(a, b) is not f(b, a) for 1392 pairs: which operand is the activation matters "
        "mul6u_B "
        "- f(0, b) is not 0 for 64 b and f(a, 0) is not 0 for 64 a: what is padded, or cut off "
        "by a ReLU, adds to the sums if it goes through the table "
        "- f(a, b) is not f(b, a) for 1 pairs: which operand is the activation matters "
        "- its errors have one sign: products come out too large, by 3.001 on average, which adds "
        "up over a sum "
        "Whether numbers are signed was found out for 2 of 2; --signed or --unsigned says it for "
        "all."
    )


def test_of_one_table_it_is_told_how_its_sign_was_found(circuits):
    out = " ".join(inspected(f"{circuits}:mul6s_A").split())
    mae = og.Multiplier.from_file(f"{circuits}:mul6s_A").metrics()["MAE"]
    assert f"- taken for signed: read so its mean absolute error is {mae:.6g}, and read as" in out
    assert "was found out for" not in out
    assert "taken for" not in inspected(f"{circuits}:mul6s_A", "--signed")


def test_nothing_surprises_in_an_exact_product():
    out = inspected("exact:6", "exact:5", "--signed")
    assert list(rows_of(out)) == ["exact signed 6x6", "exact signed 5x5"]
    assert set(rows_of(out)["exact signed 6x6"].values()) == {
        "exact signed 6x6", "signed 6x6", "0", "1",
    }  # fmt: skip
    assert " - " not in out


def test_signed_and_unsigned_reach_the_reader(circuits):
    out = inspected("mitchell:4", "--signed")
    assert "Mitchell 4x4, sign-magnitude" in rows_of(out)
    out = inspected(f"{circuits}:mul6u_B", "--signed")
    assert rows_of(out)["mul6u_B"]["type"] == "signed 6x6"
    assert "it seems to be wrong for these signs" in " ".join(out.split())
    message = refused(circuits, "--unsigned")
    assert message.startswith("error: circuits.npz: signed=False, and the table holds -992: give")


def test_other_files(tmp_path, compile_c):
    source = compile_c("#include <stdint.h>\nuint16_t f(uint8_t a, uint8_t b) { return a * b; }")
    table = tmp_path / "[3].txt"  # no markup
    table.write_text("\n".join(f"{a} {b} {a * b}" for a in range(8) for b in range(4)))
    rows = rows_of(inspected(source, table))
    assert rows["f"]["type"] == "unsigned 8x8"
    assert rows["[3]"]["type"] == "unsigned 3x2"


# ---- costs ---------------------------------------------------------------------------------


def published(tmp_path, sha256=None):
    figures = {"PDK45_PWR": "0.289", "PDK45_AREA": "543.0", "PDK45_DELAY": "1.33"}
    entry = {"published": figures} | ({"sha256": sha256} if sha256 else {})
    path = tmp_path / "published.json"
    path.write_text(json.dumps({"circuits": {"mul6s_A": entry, "mul6u_B": {"published": {}}}}))
    return path


@pytest.mark.parametrize("width", [80, 200], indirect=True)
def test_costs_are_shown_where_they_are_known(circuits, tmp_path, width):
    out = inspected(circuits, "mitchell:4", "--costs", published(tmp_path))
    assert max(map(len, out.splitlines())) <= width
    header = next(line for line in out.splitlines() if "power/mW" in line)
    assert header.split()[-3:] == ["power/mW", "area/µm²", "delay/ns"]
    costly = [line.split() for line in out.splitlines() if line.startswith("mul6s_A ")]
    assert costly[-1][-3:] == ["0.289", "543", "1.33"]
    assert "its cost is not among the published figures" in out
    assert "power/mW" not in inspected(circuits)


def test_the_cost_of_another_circuit_of_the_same_name_is_not_taken(circuits, tmp_path):
    own = og.Multiplier.from_file(f"{circuits}:mul6s_A").sha256
    assert "0.289" in inspected(circuits, "--costs", published(tmp_path, own))
    out = inspected(circuits, "--costs", published(tmp_path, own[::-1]))
    assert "0.289" not in out
    assert "it is not the circuit whose cost is published under this name" in out


def test_costs_that_cannot_be_read(circuits, tmp_path):
    path = tmp_path / "costs.json"
    assert f"--costs {path}: No such file or directory. Check the path." in refused(
        circuits, "--costs", path
    )
    for text in ("no JSON", "[]", "{}", '{"circuits": 3}', '{"circuits": {"mul6s_A": 3}}'):
        path.write_text(text)
        assert f"--costs {path}: it must be JSON, " in refused(circuits, "--costs", path)


# ---- for machines --------------------------------------------------------------------------


def test_json_has_every_fact(circuits, tmp_path):
    path = tmp_path / "new" / "facts.json"
    out = inspected(circuits, "--json", path, "--costs", published(tmp_path))
    assert f"Saved {path}" in out.splitlines()
    first, second = json.loads(path.read_text())["multipliers"]
    due = og.Multiplier.from_file(f"{circuits}:mul6s_A")
    assert first["name"] == "mul6s_A"
    assert first["signed"] is True
    assert first["widths"] == [6, 6]
    assert first["sha256"] == due.sha256
    assert first["metrics"] == due.metrics()
    assert first["rank"] == due.rank
    assert first["commutative"] is False
    assert first["surprises"] == due.surprises()
    assert first["notes"] == list(due.notes)
    assert first["cost"]["power"] == 0.289
    assert first["cost"]["power_unit"] == "mW"
    assert second["cost"] is None
    assert second["not_zero"] == {"first": 64, "second": 64}


def test_json_on_standard_output_is_alone_there(tmp_path):
    table = np.multiply.outer(np.arange(8.0), np.arange(4.0))
    table[3, 2] = np.inf
    np.save(tmp_path / "infinite.npy", table)
    code, out, error = opgraft(tmp_path / "infinite.npy", "--json", "-", "--unsigned")
    assert code == 0
    (facts,) = json.loads(out)["multipliers"]
    assert facts["metrics"]["WCE"] is None
    assert "Infinity" not in out
    assert rows_of(error)["infinite"]["WCE"] == "inf"


# ---- the picture ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_picture_has_a_panel_for_each(count, tmp_path, monkeypatch):
    shown = []
    draw = picture.draw_panel
    monkeypatch.setattr(
        picture, "draw_panel", lambda *given: shown.append(given[1:]) or draw(*given)
    )
    families = ["drum:3,widths=5x4", "exact:3", "mitchell:4", "roba:3", "kulkarni:6x3"][:count]
    path = tmp_path / "new" / "errors.png"
    out = inspected(*families, "--picture", path)
    assert f"Saved {path}" in out.splitlines()
    pixels = image.imread(path)[..., :3]
    assert pixels.std() > 0.05
    assert len(shown) == count
    for axes, multiplier in shown:
        (drawn,) = axes.get_images()
        error = multiplier.table - multiplier.exact
        np.testing.assert_array_equal(drawn.get_array(), error)  # codes are in order here
        low, high = drawn.get_clim()
        assert low == -high < 0
        assert axes.get_title(loc="left").strip() == multiplier.name
        ends = axes.get_xticklabels()
        assert [each.get_text() for each in (ends[0], ends[-1])] == [
            "0", str(2 ** multiplier.widths[1] - 1),
        ]  # fmt: skip


def test_the_axes_are_numbers_and_not_codes(tmp_path, monkeypatch):
    shown = []
    draw = picture.draw_panel
    monkeypatch.setattr(
        picture, "draw_panel", lambda *given: shown.append(given[1]) or draw(*given)
    )
    signed = og.multipliers.broken_array(1, 0, 3, widths=(4, 3), signed=True)
    values = np.array([0, 0.5, 1, np.inf, 0, -0.5, -1, np.nan])
    finite = np.nan_to_num(values, posinf=0)
    half = np.multiply.outer(finite, finite) / 2
    floats = og.Multiplier.from_array(half, values=(values, values))
    picture.draw(tmp_path / "errors.svg", [signed, floats], "svg")
    assert "<svg" in (tmp_path / "errors.svg").read_text()
    first, second = (axes.get_images()[0].get_array() for axes in shown)
    error = np.roll(signed.table - signed.exact, (8, 4), (0, 1))
    np.testing.assert_array_equal(first, error)
    assert [t.get_text() for t in shown[0].get_yticklabels()] == [f"{MINUS}8", "0", "7"]
    assert [t.get_text() for t in shown[0].get_xticklabels()] == [f"{MINUS}4", "0", "3"]
    numbers = np.array([-1, -0.5, 0, 0, 0.5, 1])
    np.testing.assert_array_equal(second, -np.multiply.outer(numbers, numbers) / 2)
    assert [t.get_text() for t in shown[1].get_yticklabels()] == [f"{MINUS}1", "0", "1"]


# ---- what is refused -------------------------------------------------------------------------


def test_nothing_named_is_an_error_that_says_what_to_give():
    assert refused() == (
        "error: Name what to inspect: opgraft inspect FILE|FAMILY.... FILE is a table, a C "
        "function or a Verilog module; families are exact, truncated, broken_array, mitchell, "
        "drum, roba, kulkarni, rounded."
    )


def test_what_cannot_be_read_or_written_is_told_before_the_work(tmp_path, circuits):
    assert "there is neither a file nor a family nosuch; families are" in refused("nosuch")
    assert "there is no file no/such.npy" in refused("no/such.npy")
    assert "circuits.npz holds mul6s_A, mul6u_B: choose one" in refused(f"{circuits}:mul6s_C")
    jpeg = tmp_path / "errors.jpeg"
    assert f"--picture {jpeg}: the name must end in .png, .pdf or .svg." in refused(
        "exact", "--picture", jpeg
    )
    folder = tmp_path / "folder.png"
    folder.mkdir()
    assert f"--picture {folder}: this is a folder." in refused("exact", "--picture", folder)
    assert f"--json {tmp_path}: this is a folder." in refused("exact", "--json", tmp_path)
    assert not jpeg.exists()

"""How a report is shown: the figures of a deviation, the table, JSON and the page."""

import dataclasses
import html
import html.parser
import io
import json
import re

import numpy as np
import pytest
import reports
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from opgraft.verification.difference import Difference, number, ranges
from opgraft.verification.findings import Check, Deviation, Report, Verdict

VERDICTS = ("forward", "gradient", "contract")


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def shown(report: Report, width=80, **settings) -> str:
    """What a terminal shows."""
    text = io.StringIO()
    Console(file=text, width=width, **settings).print(report)
    return text.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


# ---- how far two arrays are apart ----------------------------------------------------


def test_a_difference_says_where_it_is(rng):
    wrong = [(1, 3, 0, 2), (1, 3, 4, 0), (0, 3, 2, 2)]
    found = reports.deviation(rng, (2, 4, 5, 3), wrong).difference()
    assert np.argwhere(found.deviating).tolist() == sorted(map(list, wrong))
    assert found.worst in wrong
    assert found.places() == [
        ("image", [0, 1], 2),
        ("row", [3], 4),
        ("column", [0, 2, 4], 5),
        ("channel", [0, 2], 3),
    ]
    sizes = found.map()
    assert sizes.shape == (4, 5)
    assert np.argwhere(sizes).tolist() == [[3, 0], [3, 2], [3, 4]]
    assert sizes[3, 2] == found.actual[0, 3, 2, 2] - found.expected[0, 3, 2, 2]


@pytest.mark.parametrize(
    ("axes", "shape", "plane"),
    [
        ((), (3, 7), (0, 1)),
        ((), (2, 3, 7), (1, 2)),
        ((), (5,), (0,)),
        ((), (), ()),
        (reports.KERNEL, (3, 2, 5, 4), (0, 1)),
        (("image", "channel", "row", "column"), (2, 3, 5, 4), (2, 3)),
        (("sample", "unit"), (3, 7), (0, 1)),
    ],
)
def test_rows_and_columns_are_found_by_their_names(axes, shape, plane, rng):
    found = reports.deviation(rng, shape, [(0,) * len(shape)], axes).difference()
    assert found.plane == plane
    assert found.map().shape == tuple([1, 1, *(shape[axis] for axis in plane)][-2:])
    assert found.at_worst(found.actual).shape == found.map().shape
    assert found.worst == (0,) * len(shape)
    assert np.count_nonzero(found.map()) == 1


def test_nan_and_infinity_are_the_largest_errors(rng):
    expected = rng.standard_normal((5, 3))
    actual = expected.copy()
    expected[0, 1] = actual[0, 1] = np.nan
    expected[1, 0] = actual[1, 0] = -np.inf
    actual[2, 2], actual[4, 0], actual[3, 1] = 1e9, np.nan, np.inf
    found = Difference(expected, actual)
    assert np.argwhere(found.deviating).tolist() == [[2, 2], [3, 1], [4, 0]]
    assert found.worst == (3, 1)
    assert found.not_numbers == 2
    assert found.largest == pytest.approx(1e9)


def test_rounding_beside_a_large_error_is_not_counted(rng):
    expected = rng.standard_normal((6, 11))
    actual = expected * (1 + 1e-6)
    actual[2, 7] += 3
    found = Difference(expected, actual)
    assert np.argwhere(found.deviating).tolist() == [[2, 7]]
    assert found.ignored == 65
    assert Difference(expected, expected * (1 + 1e-6)).ignored < 10  # alone, it is what there is


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float16, np.bool_])
def test_small_types_do_not_overflow(dtype, rng):
    expected = rng.integers(0, 2, (4, 7)).astype(dtype)
    actual = expected.copy()
    expected[1, 2], actual[1, 2] = np.array([1, 0], dtype)
    assert Difference(expected, actual).errors[1, 2] == -1


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_exactly_the_indices(indices):
    text = ranges(sorted(indices))
    named = set()
    for part in filter(None, text.split(", ")):
        low, _, high = part.partition("-")
        named |= set(range(int(low), int(high or low) + 1))
    assert named == indices
    assert ranges([0, 1, 2, 3, 7]) == "0-3, 7"


@pytest.mark.parametrize(
    ("value", "text"),
    [(-17.0, "-17"), (0.1234567891, "0.1234568"), (1e20, "1e+20"), (np.nan, "NaN"),
     (-np.inf, "-inf"), (np.float32(2.5), "2.5"), (16777217, "16777217")],
)  # fmt: skip
def test_numbers_are_short(value, text):
    assert number(value) == text


# ---- findings ------------------------------------------------------------------------


def test_a_check_takes_numpy_truth():
    assert Verdict("forward", (Check("a", np.True_, ""),)).passed is True
    assert Verdict("forward", (Check("a", np.False_, ""),)).outcome is False
    assert Check("a", None, "").passed is None


@pytest.mark.parametrize("state", [False, None])
@pytest.mark.parametrize("name", VERDICTS)
def test_one_verdict_that_does_not_pass_is_enough(name, state):
    report = reports.report(**{name: state})
    assert not report.passed
    assert getattr(report, name).outcome is state
    assert len(report.failures) == (state is False)
    assert len(report.not_run) == (state is None)


def test_json_holds_everything_and_is_valid(rng):
    deviations = (
        reports.deviation(rng, (2, 4, 5, 3), [(1, 2, 3, 0)]),
        Deviation("gradient of b", "c", np.zeros((3, 4)), np.zeros(4)),
        Deviation("not finite", "c", rng.random((2, 3)), np.full((2, 3), np.nan)),
    )
    metrics = {"max": np.float32(0.5), "mean": np.nan, "relative": np.inf, "n": np.int64(7),
               "long": np.longdouble(0.25), "each": np.array([1, 2])}  # fmt: skip
    report = reports.report(
        gradient=False, findings=("gradient of b: broadcast shape",), metrics=metrics,
        deviations=deviations, seconds=np.float64(3),
    )  # fmt: skip

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    told = json.loads(report.to_json(), parse_constant=refuse)
    assert told["passed"] is False
    assert [told[name]["passed"] for name in VERDICTS] == [True, False, True]
    assert told["gradient"]["checks"][1] == dataclasses.asdict(report.gradient.checks[1])
    assert told["findings"] == ["gradient of b: broadcast shape"]
    assert told["metrics"] == {"max": 0.5, "mean": None, "relative": None, "n": 7, "long": 0.25,
                               "each": [1, 2]}  # fmt: skip
    first, second, third = told["deviations"]
    assert (first["shape"], first["deviating"], first["at"]) == ([2, 4, 5, 3], 1, [1, 2, 3, 0])
    assert first["actual"] - first["expected"] == first["largest"]
    assert (second["expected_shape"], second["actual_shape"]) == ([3, 4], [4])
    assert (third["not_numbers"], third["actual"]) == (6, None)


# ---- in the terminal -----------------------------------------------------------------


def test_a_report_that_passed_as_text():
    metrics = {"largest error": 2.5e-7, "mean error": 0.0}
    lines = str(reports.report("matmul of /tmp/[red]a[/red].c", metrics=metrics)).splitlines()
    assert lines[0] == "matmul of /tmp/[red]a[/red].c"
    assert lines[-1] == "PASSED in 12.3 s"
    for name in VERDICTS:
        assert f"{name.capitalize()}: passed" in lines
    assert sum(line.startswith("  ✓ ") for line in lines) == 6
    assert "Metrics: largest error 2.5e-07, mean error 0" in lines
    assert "What is wrong" not in "".join(lines)
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("name", VERDICTS)
def test_a_report_that_failed_says_why_first(name, rng):
    shape = (2, 5, 4, 3)
    findings = ("agrees with symmetric padding", "writes beyond the end of its output")
    found = reports.deviation(rng, shape, [(1, 4, 3, 0)])
    found = dataclasses.replace(found, title=f"{name} in a test")
    passing = dataclasses.replace(found, title=f"{VERDICTS[VERDICTS.index(name) - 1]} in a test")
    report = reports.report(**{name: False}, findings=findings, deviations=(passing, found))
    lines = str(report).splitlines()
    assert words(lines[2]) == f"What is wrong: {findings[0]}"
    assert words(lines[3]) == findings[1]
    assert words(lines[4]) == f"Smallest case: {name}-2x5x4x3"
    due, came = (number(array[1, 4, 3, 0]) for array in (found.expected, found.actual))
    said = f"Worst element: {name} in a test [1, 4, 3, 0]: expected {due}, actual {came}"
    assert words(" ".join(lines[5:7])).startswith(said)
    assert f"{name.capitalize()}: failed" in lines
    assert lines[-1].startswith("FAILED in 12.3 s: ")
    assert f"{name} failed" in lines[-1]


def test_without_a_diagnosis_the_failed_checks_are_named():
    report = reports.report(gradient=False, contract=None)
    text = words(str(report))
    assert "What is wrong: adjoint identity" in text
    assert "Could not be run: writes its output only" in text
    assert "\u2013 writes its output only needs a safe kernel" in text
    assert text.endswith("forward passed, gradient failed, contract not complete")


def test_a_verdict_without_checks_has_not_passed():
    report = dataclasses.replace(reports.report(), gradient=Verdict("gradient", ()))
    assert not report.passed
    assert "Gradient: not complete \u2013 none nothing was checked" in words(str(report))
    page = read(report)
    assert "Gradient \u2013 not complete" in page.texts("h2")
    assert "nothing was checked" in page.texts("td")


@pytest.mark.parametrize("width", [40, 80, 132])
def test_a_message_is_wrapped_and_whole(width):
    message = "row 7 of 8 differs in " + ", ".join(f"image_{i}_of_[{i}]" for i in range(20))
    forward = Verdict("forward", (Check("agrees", False, message), Check("z" * 60, True, "yes")))
    text = shown(dataclasses.replace(reports.report(), forward=forward), width)
    assert max(map(len, text.splitlines())) <= width
    assert "".join(message.split()) in "".join(text.split())
    assert text.count("z") == 60


def test_colour_is_for_terminals_only(monkeypatch):
    report = reports.report(forward=False)
    assert "\x1b[" in shown(report, force_terminal=True, color_system="truecolor")
    assert "\x1b" not in shown(report)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\d", shown(report, force_terminal=True))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in str(report)


def test_a_terminal_without_unicode_gets_words_for_marks():
    file = io.TextIOWrapper(io.BytesIO(), "ascii")
    report = reports.report(forward=False, contract=None)
    Console(file=file, width=80).print(report)
    file.seek(0)
    lines = file.read().splitlines()
    assert any(line.startswith("  XX agrees with its meaning") for line in lines)
    assert any(line.startswith("  ok terminates") for line in lines)
    assert any(line.startswith("  -- writes its output only") for line in lines)


def test_the_repr_is_one_line(rng):
    found = (reports.deviation(rng, (9, 4), [(0, 0)]),)
    report = reports.report(forward=False, findings=("is NaN or infinite",), deviations=found)
    assert repr(report) == (
        "<Report on conv2d custom_conv2d of approx.c: failed: is NaN or infinite>"
    )
    assert repr(reports.report()) == "<Report on conv2d custom_conv2d of approx.c: passed>"


# ---- the page ------------------------------------------------------------------------


class Reader(html.parser.HTMLParser):
    """Reads a page: its elements in order, and what stands in each of some kinds.

    Attributes:
        elements: (tag, attributes, text within) of every element.
    """

    def __init__(self, page: str):
        super().__init__()
        self.elements: list = []
        self._open: list = []
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {[tag for tag, _, _ in self._open]}"

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag != "meta":
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, text in self._open:
            text.append(data)

    def texts(self, tag: str, kind: str = "") -> list[str]:
        """The text in every element of a kind (a class), or in all of them."""
        return [
            words("".join(text))
            for name, attributes, text in self.elements
            if name == tag and (not kind or kind in (attributes.get("class") or "").split())
        ]


def read(report: Report) -> Reader:
    return Reader(report.to_html())


def cells(page: Reader, *kinds: str) -> list[str]:
    """What the cells of some colours say when they are pointed at."""
    return [text for kind in kinds for text in page.texts("rect", kind) if text]


COLOURS = [f"s{step}" for step in range(1, 10)]


@pytest.mark.parametrize("name", [*VERDICTS, "nothing"])
def test_the_page_shows_the_verdict_the_findings_and_every_check(name):
    outcome = {name: False} if name in VERDICTS else {}
    report = reports.report(**outcome, findings=("is 1.0005 times what is due",) * bool(outcome))
    page = read(report)
    (title,), (heading,) = page.texts("title"), page.texts("h1")
    assert title.startswith("✗" if outcome else "✓")
    assert heading == report.target
    assert page.texts("strong") == ["✗ FAILED" if outcome else "✓ PASSED"]
    assert page.texts("li")[3:] == list(report.findings)
    headings = [f"{v.capitalize()} {'✗ failed' if v == name else '✓ passed'}" for v in VERDICTS]
    assert page.texts("h2") == ["What is wrong"] * bool(outcome) + headings
    rows = page.texts("tr")
    for check in (check for verdict in report.verdicts for check in verdict.checks):
        assert any(check.name in row and check.message in row and check.proves in row
                   for row in rows)  # fmt: skip
    assert page.texts("code") == [f"{name}-2x5x4x3"] * 2 * bool(outcome)


def test_a_page_says_what_could_not_be_run():
    page = read(reports.report(contract=False, forward=None, gradient=None))
    assert "Could not be run: agrees with its meaning, adjoint identity" in page.texts("p")
    assert "in 12.3 s: 3 of 6 checks passed, 2 could not be run" in page.texts("span")
    assert "Forward \u2013 not complete" in page.texts("h2")
    assert page.texts("ul", "findings") == ["writes its output only"]


def test_a_page_lists_the_metrics():
    page = read(reports.report(metrics={"largest error": 2.5e-7, "mean error": np.float32(0.5)}))
    assert page.texts("td")[-4:] == ["largest error", "2.5e-07", "mean error", "0.5"]


def test_the_page_needs_no_other_file_and_no_script(rng):
    found = reports.deviation(rng, (2, 5, 4, 3), [(1, 4, 3, 0)])
    text = reports.report(forward=False, deviations=(found,)).to_html()
    for word in ("http", "src=", "url(", "@import", "<script", "<link", "<iframe", "<img", "data:"):
        assert word not in text
    assert all(target[0] == "#" for target in re.findall(r'href="([^"]*)"', text))
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert 'name="viewport"' in text


def test_text_of_the_user_is_no_markup(rng):
    bad = "<script>alert('1')</script>&\"<b>"
    check = Check(bad, False, bad, bad, bad)
    found = reports.deviation(rng, (2, 3, 5, 4), [(0, 1, 2, 3)], (bad, "row", "column", bad), bad)
    report = Report(
        bad, *(Verdict(name, (check,)) for name in VERDICTS), findings=(bad,), metrics={bad: 0.5},
        deviations=(found, Deviation(bad, bad, np.zeros(3), np.zeros(4))),
    )  # fmt: skip
    text = report.to_html()
    page = Reader(text)  # a raw tag would not be closed
    assert "<script" not in text
    assert "<b>" not in text
    for kind in ("h1", "td", "code", "li"):
        assert bad in page.texts(kind)


def test_an_error_map_shows_where(rng):
    found = reports.deviation(rng, (2, 4, 5, 3), [(1, 3, 0, 2), (0, 3, 4, 0), (1, 1, 2, 2)])
    page = read(reports.report(forward=False, deviations=(found,)))
    difference = found.difference()
    sizes = difference.map()
    assert sorted(cells(page, *COLOURS)) == sorted(
        f"row {row}, column {column}: {number(sizes[row, column])}"
        for row, column in np.argwhere(sizes)
    )
    assert len(cells(page, "s0")) == 20 - 3
    assert "3 of 120 elements deviate (2.5%)" in page.texts("article")[0]
    image, row, column, channel = difference.worst
    assert f"image {image}, row {row}, column {column}, channel {channel}" in page.texts("td")
    captions = page.texts("figcaption")
    assert captions[0] == "Where: |actual \u2212 expected|largest over images and channels"
    assert captions[2:] == [
        f"{name}at image {image}, channel {channel}"
        for name in ("Expected", "Actual", "Error (actual \u2212 expected)")
    ]


def test_panels_hold_the_values(rng):
    found = reports.deviation(rng, (4, 7), [(2, 5)])
    page = read(reports.report(forward=False, deviations=(found,)))
    signed = cells(page, *(f"d{step}" for step in range(11)))
    for values in (found.expected, found.actual, found.actual - found.expected):
        for (row, column), value in np.ndenumerate(values):
            assert f"row {row}, column {column}: {number(value)}" in signed
    assert len(signed) == 3 * 28
    written = [text for text in page.texts("text", "value") if text]
    assert written[:28] == [number(value) for value in found.expected.flat]


def test_a_histogram_counts_every_element(rng):
    expected = rng.standard_normal((13, 37))
    actual = expected + rng.standard_normal((13, 37))
    actual[3, 4] = np.nan
    page = read(reports.report(forward=False, deviations=(Deviation("x", "", expected, actual),)))
    counts = [int(text.split()[0].replace(",", "")) for text in cells(page, "bar")]
    assert sum(counts) == 13 * 37 - 1
    assert 5 < len(counts) <= 31
    assert cells(page, "nan") == ["row 3, column 4: inf"]
    assert "1 of them by NaN or infinity, the others by" in page.texts("article")[0]
    assert "not finite" in page.texts("text")


def test_one_element_of_a_large_array_is_seen(rng):
    expected = rng.standard_normal((1, 201, 130, 2))
    actual = expected.copy()
    actual[0, 77, 101, 1] += 0.5
    page = read(reports.report(forward=False, deviations=(Deviation("x", "", expected, actual),)))
    (cell,) = cells(page, *COLOURS)
    row, column = re.match(r"row (\d+-\d+), column (\d+-\d+): 0.5", cell).groups()
    for index, span in ((77, row), (101, column)):
        low, high = map(int, span.split("-"))
        assert low <= index <= high
    assert len(page.texts("figure")) == 2  # too large for its values


@pytest.mark.parametrize("scale", [1e-320, 1e-40, 1e308])
def test_errors_of_any_size_can_be_drawn(scale, rng):
    expected = scale * rng.standard_normal((3, 5)).clip(-1, 1)
    expected[0, :2] = 0.9 * scale, -0.9 * scale
    page = read(reports.report(deviations=(Deviation("x", "", expected, -expected),)))
    drawn = [
        float(attributes[name])
        for _, attributes, _ in page.elements
        for name in {"x", "y", "width", "height"} & set(attributes)
    ]
    assert np.isfinite(drawn).all()
    assert len(drawn) > 100
    assert cells(page, "bar")


@pytest.mark.parametrize(
    ("due", "came", "text"),
    [((3, 4), (4,), "The shape should be (3, 4); it is (4,)."),
     ((0, 4), (0, 4), "The shape is (0, 4): there are no elements to compare.")],
)  # fmt: skip
def test_what_cannot_be_drawn_is_said(due, came, text):
    found = Deviation("gradient of b", "c", np.zeros(due), np.zeros(came))
    page = read(reports.report(gradient=False, deviations=(found,)))
    assert text in page.texts("p")
    assert not page.texts("figure")


def test_equal_arrays_are_said_to_agree(rng):
    same = rng.standard_normal((5, 3))
    page = read(reports.report(deviations=(Deviation("forward", "", same, same.copy()),)))
    assert "All 15 elements agree." in page.texts("p")
    assert len(cells(page, "s0")) == 15


def test_axes_are_named(rng):
    found = reports.deviation(rng, (3, 2, 5, 4), [(2, 1, 0, 3)], reports.KERNEL)
    page = read(reports.report(gradient=False, deviations=(found,)))
    (cell,) = cells(page, *COLOURS)
    assert cell.startswith("kernel row 2, kernel column 1: ")
    assert {"kernel row", "kernel column"} <= set(page.texts("text", "name"))
    assert "largest over input channels and output channels" in page.texts("span")


def test_a_page_is_saved_whatever_stands_in_it(tmp_path):
    path = tmp_path / "page.html"
    reports.report("kernel /tmp/\udc80.c of 180°").save_html(path)
    assert "kernel /tmp/?.c of 180°" in Reader(path.read_text("utf-8")).texts("h1")
    with pytest.raises(OSError, match="folder"):
        reports.report().save_html(tmp_path / "no folder" / "page.html")


def test_a_notebook_shows_the_page_in_a_frame():
    report = reports.report(forward=False)
    ((tag, attributes, _),) = Reader(report._repr_html_()).elements
    assert tag == "iframe"
    assert attributes["srcdoc"] == report.to_html()

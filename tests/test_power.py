"""The verifier's power: it catches every planted mistake, names it, and lets the rest pass."""

import importlib.util
import subprocess
import sys

import planting
import pytest
from planted import CORRECT, PLANTED
from rich.console import Console

import opgraft as og
from opgraft.verification import reloading
from opgraft.verification.findings import Check

pytestmark = [
    pytest.mark.filterwarnings("ignore:the Python function"),  # that it is slow
    pytest.mark.filterwarnings("ignore:.*lives in the memory of this process only"),
]
BENCHMARK = planting.TESTS.parent / "benchmarks" / "verify_power.py"


@pytest.fixture
def without_reloading(monkeypatch):
    """No new process that loads what was saved: it takes seconds, and nothing planted shows there.

    `benchmarks/verify_power.py` leaves it in, and all else that is left out here.
    """

    left = reloading.Reloading
    monkeypatch.setattr(left, "__enter__", lambda self: self)
    monkeypatch.setattr(left, "__exit__", lambda self, *_: None)
    monkeypatch.setattr(left, "check", lambda self: Check(self._name, True, "left out"))


def parameters(entries):
    return [
        pytest.param(entry, id=entry.name, marks=[pytest.mark.slow] if entry.slow else [])
        for entry in entries
    ]


@pytest.mark.usefixtures("without_reloading")
@pytest.mark.parametrize("mistake", parameters(PLANTED))
def test_a_mistake_is_caught_and_named(mistake):
    report = planting.verify_in_an_operation(mistake)
    assert mistake.problem(report) == ""
    assert not report.passed
    assert not getattr(report, mistake.verdict).passed


@pytest.mark.usefixtures("without_reloading")
@pytest.mark.parametrize("entry", parameters(CORRECT))
def test_what_is_right_raises_no_alarm(entry):
    report = planting.verify_in_an_operation(entry)
    assert entry.problem(report) == ""
    assert report.passed
    assert report.findings == ()


def test_names_are_unique():
    names = [entry.name for entry in (*PLANTED, *CORRECT)]
    assert len(set(names)) == len(names)


def test_at_least_half_is_not_slow():
    for entries in (PLANTED, CORRECT):
        assert 2 * sum(not entry.slow for entry in entries) >= len(entries)
    quick = [entry.verdict for entry in PLANTED if not entry.slow]
    assert all(quick.count(verdict) >= 15 for verdict in ("forward", "gradient", "contract"))


# ---- the benchmark -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_counts():
    command = [sys.executable, str(BENCHMARK), "square_product", "product_by_hand"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        done.stdout.splitlines()[-2:]
        == ["caught 4 / 4 planted, named rightly 4 / 4, false alarms 0 / 1 correct"]
        or "caught 4 / 4 planted, named rightly 4 / 4, false alarms 0 / 1 correct" in done.stdout
    )


@pytest.fixture
def benchmark():
    spec = importlib.util.spec_from_file_location("verify_power", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("said", "counts", "code"),
    [
        (("agrees with OIHW", ""), "caught 1 / 1 planted, named rightly 1 / 1, false alarms 0", 0),
        (("agrees with OHWI", ""), "caught 1 / 1 planted, named rightly 0 / 1, false alarms 0", 1),
        ((None, ""), "caught 0 / 1 planted, named rightly 0 / 1, false alarms 0", 1),
        (("agrees with OIHW", "agrees with OIHW"),
         "caught 1 / 1 planted, named rightly 1 / 1, false alarms 1", 1),
    ],
)  # fmt: skip
def test_the_benchmark_fails_unless_all_is_right(
    benchmark, monkeypatch, capsys, said, counts, code
):
    first, second = said
    planted = planting.Planted("layout", lambda: Said(first) if first else Said(failed=""),
                               "agrees with OIHW")  # fmt: skip
    right = planting.Correct("right", lambda: Said(second) if second else Said(failed=""))
    monkeypatch.setattr(benchmark, "PLANTED", [planted])
    monkeypatch.setattr(benchmark, "CORRECT", [right])
    monkeypatch.setattr(benchmark.planting, "verify", lambda entry: entry.make())
    assert benchmark.main([], Console()) == code
    assert counts + " / 1 correct" in " ".join(capsys.readouterr().out.split())


# ---- the judge itself ----------------------------------------------------------------------


class Said:
    """A report with these findings, of which one verdict failed."""

    def __init__(self, *findings, failed="forward"):
        self.findings = findings
        self.passed = not failed
        verdict = type("Verdict", (), {"passed": True, "checks": ()})
        self.verdicts = [verdict() for _ in range(3)]
        self.forward, self.gradient, self.contract = self.verdicts
        if failed:
            getattr(self, failed).passed = False


MISTAKE = planting.Planted("strides", lambda: (og.exact, {}), "agrees with strides swapped")


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (Said("agrees with strides swapped"), ""),
        (Said("agrees with strides swapped", "wrong only for odd sizes"), ""),
        (Said(failed=""), "missed"),
        (Said("agrees with OIHW"), "not named; found: agrees with OIHW"),
        (Said("agrees with strides swapped", "agrees with OIHW"), "also named: agrees with OIHW"),
        (Said(failed="contract"), "forward passed; found: nothing"),
        (Said(), "not named; found: nothing"),
    ],
)
def test_the_judge_of_a_mistake(said, problem):
    assert MISTAKE.problem(said) == problem


def test_the_judge_lets_both_operands_have_one_name():
    mistake = planting.Planted(
        "padding", lambda: (og.exact, {}), "gradient of x: agrees with VALID padding", "gradient"
    )
    both = [f"gradient of {name}: agrees with VALID padding" for name in ("x", "kernel")]
    assert mistake.problem(Said(*both, failed="gradient")) == ""
    other = "gradient of kernel: agrees with stride 1"
    assert mistake.problem(Said(both[0], other, failed="gradient")) == f"also named: {other}"


def test_the_judge_takes_any_number_for_n():
    mistake = planting.Planted("some", lambda: (og.exact, {}), "<n> elements never written")
    assert mistake.problem(Said("12 elements never written")) == ""
    assert mistake.problem(Said("elements never written")).startswith("not named")


def test_the_judge_of_what_is_right():
    right = planting.Correct("exact", lambda: (og.exact, {}))
    assert right.problem(Said(failed="")) == ""
    assert right.problem(Said("agrees with OIHW", failed="")) == "false alarm: agrees with OIHW"
    assert right.problem(Said()) == "did not pass: without a reason"

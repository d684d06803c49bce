"""The verifier's power: it catches every planted mistake, names it, and lets the rest pass."""

import planting
import pytest
from planted import CORRECT, PLANTED

import opgraft as og

pytestmark = [
    pytest.mark.filterwarnings("ignore:the Python function"),  # that it is slow
    pytest.mark.filterwarnings("ignore:.*lives in the memory of this process only"),
]


def parameters(entries):
    return [
        pytest.param(entry, id=entry.name, marks=[pytest.mark.slow] if entry.slow else [])
        for entry in entries
    ]


@pytest.mark.parametrize("mistake", parameters(PLANTED))
def test_a_mistake_is_caught_and_named(mistake):
    report = planting.verify(mistake)
    assert mistake.problem(report) == ""
    assert not report.passed
    assert not getattr(report, mistake.verdict).passed


@pytest.mark.parametrize("entry", parameters(CORRECT))
def test_what_is_right_raises_no_alarm(entry):
    report = planting.verify(entry)
    assert entry.problem(report) == ""
    assert report.passed
    assert report.findings == ()


def test_names_are_unique():
    names = [entry.name for entry in (*PLANTED, *CORRECT)]
    assert len(set(names)) == len(names)


def test_there_are_enough_of_each_kind():
    quick = [entry for entry in PLANTED if not entry.slow]
    for verdict in ("forward", "gradient", "contract"):
        assert sum(entry.verdict == verdict for entry in quick) >= 20
    assert sum(not entry.slow for entry in CORRECT) >= 20


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

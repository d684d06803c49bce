"""Reports made by hand, to test how they are shown."""

import numpy as np

from opgraft.verification.findings import Check, Deviation, Report, Verdict

KERNEL = ("kernel row", "kernel column", "input channel", "output channel")


def report(
    target="conv2d custom_conv2d of approx.c",
    *,
    forward=True,
    gradient=True,
    contract=True,
    **fields,
) -> Report:
    """A report whose verdicts end as given: True, False, or None for what could not be run."""
    verdicts = [
        verdict("forward", "agrees with its meaning", forward),
        verdict("gradient", "adjoint identity", gradient),
        verdict("contract", "writes its output only", contract),
    ]
    return Report(target, *verdicts, **{"seconds": 12.34, **fields})


def verdict(name: str, check: str, passed: bool | None) -> Verdict:
    """Two checks: one that passed, and one as given."""
    messages = {True: "384 cases", False: "17 of 384 cases differ", None: "needs a safe kernel"}
    case = f"{name}-2x5x4x3" if passed is False else ""
    proves = "nothing beyond the sizes of the case table"
    checks = (Check("terminates", True, "in 96 calls"),
              Check(check, passed, messages[passed], proves, case))  # fmt: skip
    return Verdict(name, checks)


def deviation(rng, shape, wrong, axes=(), title="forward") -> Deviation:
    """Random whole numbers, off by 1 to 9 at the indices `wrong`."""
    expected = rng.integers(-50, 50, shape).astype(np.float32)
    actual = expected.copy()
    for index in wrong:
        actual[index] += rng.integers(1, 10)
    return Deviation(title, f"case {shape}", expected, actual, axes)

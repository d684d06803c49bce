"""A verification in the making: what was asked for, and what was found so far."""

import dataclasses
from collections.abc import Callable, Iterable

from opgraft.verification.findings import Check, Deviation
from opgraft.verification.forward import Forward


@dataclasses.dataclass(frozen=True)
class Options:
    """What the caller of `og.verify` asked for; see there."""

    limit: float | None = None
    multiply: Callable | None = None
    surrogate: Callable | None = None
    large: bool = False
    time_limit: float = 10.0
    memory_limit: int = 4 << 30


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What one part of the verification found."""

    checks: tuple[Check, ...]
    findings: tuple[str, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    contract: tuple[Check, ...] = ()  # of a gradient that is C code


@dataclasses.dataclass
class Parts:
    """A report in the making.

    Attributes:
        safe: whether the target may be called in this process.
    """

    forward: list[Check] = dataclasses.field(default_factory=list)
    gradient: list[Check] = dataclasses.field(default_factory=list)
    contract: list[Check] = dataclasses.field(default_factory=list)
    findings: list[str] = dataclasses.field(default_factory=list)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    deviations: list[Deviation] = dataclasses.field(default_factory=list)
    safe: bool = True

    def add_forward(self, found: Forward, prefix: str = "") -> None:
        self.forward += named(found.checks, prefix)
        self.find(*found.findings)
        self.metrics |= {f"{prefix}{name}": value for name, value in found.metrics.items()}
        self.deviations += found.deviations

    def add_gradient(self, found: Outcome) -> None:
        self.gradient += found.checks
        self.contract += found.contract
        self.find(*found.findings)
        self.deviations += found.deviations

    def find(self, *findings: str) -> None:
        """Note diagnoses, each once."""
        self.findings += [f for f in dict.fromkeys(findings) if f not in self.findings]

    def add(self, other: "Parts", prefix: str) -> None:
        """All of another, its checks under a prefix."""
        for kind in ("forward", "gradient", "contract"):
            getattr(self, kind).extend(named(getattr(other, kind), prefix))
        self.find(*other.findings)
        self.metrics |= {f"{prefix}{name}": value for name, value in other.metrics.items()}
        self.deviations += other.deviations
        self.safe &= other.safe


def named(checks: Iterable[Check], prefix: str) -> list[Check]:
    return [dataclasses.replace(check, name=prefix + check.name) for check in checks]


UNSAFE = "not run: the function is not safe to call in this process; see the contract"


def not_run(*names: str) -> list[Check]:
    """Checks that are left out since the function is not safe."""
    return [Check(name, None, UNSAFE) for name in names]

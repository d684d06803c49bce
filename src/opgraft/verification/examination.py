"""What an examination of one function has seen so far."""

import dataclasses

from opgraft.products.c_function import CSymbol
from opgraft.verification.calls import Call, Outcome
from opgraft.verification.cases import Case
from opgraft.verification.findings import Check
from opgraft.verification.sandbox import Sandbox

# The checks in order, and what passing proves.
PROVES = {
    "runs": "no call that was tried ends the process; nothing about other sizes and values",
    "terminates": "every call that was tried returns within the time limit; nothing about other "
    "sizes and values",
    "memory": "no call that was tried takes more memory than the limit beyond its operands; not "
    "that it gives all of it back",
    "returns zero": "no call that was tried reports an error; a function that returns nothing "
    "cannot",
    "stays inside its output": "nothing near the three buffers is changed; a write that goes "
    "farther than they are long is seen only if it hits memory that nobody may write to",
    "reads only its inputs": "no byte directly before or behind an operand is read, on the sizes "
    "tried; a read that skips the next page of memory is not seen",
    "leaves its inputs alone": "no operand is written to, not even to put it back",
    "writes every element": "no element of the output keeps, or depends on, what was there before "
    "the call",
    "repeats itself": "equal operands give equal bits, called twice, after calls of other values "
    "and other sizes, and in a new process; nothing about other machines",
    "threads": "calls at the same time give the bits of single calls; a collision that is rarer "
    "than in some hundred calls is not seen",
    "runs on your sizes": "what is above holds for the sizes of your inputs, too",
    "indices beyond 2^31": "the largest indices of the input do not overflow 32 bits with a sign; "
    "nothing about those of the output, nor about indices without a sign",
}
_OWN, _LARGE = list(PROVES)[-2:]
# A function that fails one of these could take its process along, damage what is others', or
# end the operation that called it.
_HARMFUL = frozenset({
    "runs", "terminates", "memory", "returns zero", "stays inside its output",
    "reads only its inputs", "leaves its inputs alone",
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Failure:
    """A diagnosis, or "" for one that needs none, what was seen, and the id of the case."""

    finding: str
    message: str
    case: str


class Examination:
    """Failures by check, and the calls that came back.

    Attributes:
        good: cases and calls that came back, smallest first.
        came_back: how many calls did.
        peak: the most bytes of memory that a call has taken.
        refused: why the function cannot be called at all, or "".
        harmful: a failure that is not told by the check alone.
    """

    def __init__(
        self, symbol: CSymbol, sandbox: Sandbox, *, large: bool = False, own: bool = False
    ) -> None:
        self.symbol, self.sandbox = symbol, sandbox
        self._asked = [
            name for name in PROVES if (name != _OWN or own) and (name != _LARGE or large)
        ]
        self.good: list[tuple[Case, Call]] = []
        self.came_back = 0
        self.peak = 0
        self.refused = ""
        self.harmful = False
        self._failures: dict[str, list[Failure]] = {name: [] for name in PROVES}
        self._passed: dict[str, str] = {}
        self._not_run: dict[str, str] = {}

    def fail(self, check: str, finding: str, message: str, case: Case | None = None) -> None:
        """Note a failure. The first with its finding counts: small cases come first."""
        failures = self._failures[check]
        if finding not in [failure.finding for failure in failures]:
            failures.append(Failure(finding, message, case.id if case else ""))

    def fail_to_return(self, outcome: Outcome, call: str, case: Case | None = None) -> None:
        """Note how a call ended that did not come back."""
        said = f" ({outcome.said})" if outcome.said else ""
        if outcome.timed_out:
            seconds = f"{self.sandbox.time_limit:g} s"
            self.fail(
                "terminates", outcome.failure, f"{call} has not returned after {seconds}", case
            )
        elif outcome.out_of_memory:
            limit = f"{self.sandbox.memory_limit / 2**20:.0f} MB"
            message = f"{call} takes more and more memory; the limit is {limit}"
            self.fail("memory", outcome.failure, message, case)
        else:
            self.fail(
                "runs", outcome.failure,
                f"{call} ends the process: {outcome.crashed}{said}. Call it so under a debugger, "
                "or compile it with -g -fsanitize=address", case,
            )  # fmt: skip

    def passes(self, check: str, message: str) -> None:
        """Say what was tried, should the check pass."""
        self._passed[check] = message

    def skip(self, check: str, why: str) -> None:
        """Say why a check could not be run."""
        self._not_run[check] = why

    def failed(self, check: str) -> bool:
        return bool(self._failures[check])

    def failure_in(self, case: Case) -> Failure | None:
        """The first failure that was noted in a case."""
        found = (failure for failures in self._failures.values() for failure in failures)
        return next((failure for failure in found if failure.case == case.id), None)

    def has_finding(self, finding: str) -> bool:
        return finding in self.findings()

    @property
    def is_stuck(self) -> bool:
        """Whether it is of no use to call the function again."""
        return bool(self.refused) or self.failed("terminates") or self.failed("memory")

    @property
    def is_safe(self) -> bool:
        ran = self.came_back > 0 and not self.refused
        return ran and not self.harmful and not any(map(self.failed, _HARMFUL))

    def findings(self) -> tuple[str, ...]:
        found = (failure.finding for failures in self._failures.values() for failure in failures)
        return tuple(dict.fromkeys(filter(None, found)))

    def checks(self) -> tuple[Check, ...]:
        return tuple(map(self._check, self._asked))

    def _check(self, name: str) -> Check:
        proves = PROVES[name]
        if failures := self._failures[name]:
            message = "; ".join(failure.message for failure in failures)
            return Check(name, False, message, proves, failures[0].case)
        if why := self._why_not(name):
            return Check(name, None, why, proves)
        return Check(name, True, self._passed.get(name, f"{self.came_back} calls"), proves)

    def _why_not(self, name: str) -> str:
        """Why a check without a failure could not be run, or ""."""
        if self.refused:
            return f"not tried: {self.refused}"
        if not self.came_back:
            return "not tried: no call came back"
        return self._not_run.get(name, "")

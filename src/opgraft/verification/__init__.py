"""The checker: whether a kernel and its gradient are right, and what is wrong with them."""

from opgraft.verification.findings import Check, Deviation, Report, Verdict
from opgraft.verification.verify import verify

__all__ = ["Check", "Deviation", "Report", "Verdict", "verify"]

"""The audit of a toy corpus: does it measure what it says? Its world is counted anew, and models are trained."""

from toy_world.measure import audit
from toy_world.report import AuditReport, audit_table
from toy_world.variants import write_variant
from toy_world.world import AuditRow

__all__ = ["AuditReport", "AuditRow", "audit", "audit_table", "write_variant"]

"""The audit of an embedded corpus: does it measure what it says? Its world is counted anew, and models are trained."""

from drawn_world.measure import audit
from drawn_world.report import AuditReport, audit_table
from drawn_world.variants import write_variant
from drawn_world.world import AuditRow

__all__ = ["AuditReport", "AuditRow", "audit", "audit_table", "write_variant"]

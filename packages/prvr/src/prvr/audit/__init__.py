"""The audit of an embedded corpus: does it measure what it says? Its world is counted anew, and models are trained."""

from prvr.audit.measure import audit
from prvr.audit.report import AuditReport, audit_table
from prvr.audit.variants import write_variant
from prvr.data.synthetic.audit import AuditRow

__all__ = ["AuditReport", "AuditRow", "audit", "audit_table", "write_variant"]

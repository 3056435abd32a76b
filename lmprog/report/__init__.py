"""A run, shown: as a tree in a terminal, as a page, as a Chrome trace, as OpenTelemetry spans, and in numbers.

Reads records (`state.record`) and knows nothing of executors or backends. A run that still goes on may be shown.
"""

from __future__ import annotations

from lmprog.report.events import trace_events
from lmprog.report.page import render_html
from lmprog.report.spans import export_spans
from lmprog.report.terminal import render_tree
from lmprog.report.totals import Totals, totals

__all__ = ["Totals", "export_spans", "render_html", "render_tree", "totals", "trace_events"]

"""Reports on compiled functions: what was fused, what was not, why, and what it costs.

    from smelt.explain import report

    print(report(compiled, {"n": 1000}, [x]))

Everything is read from the journal and the plan.
"""

from smelt.explain.analysis import as_text, cost_analysis, memory_analysis
from smelt.explain.measure import measure
from smelt.explain.page import Lesson, frame, lessons_html
from smelt.explain.report import KernelReport, Report, report, write
from smelt.explain.units import show_time

__all__ = [
    "KernelReport",
    "Lesson",
    "Report",
    "as_text",
    "cost_analysis",
    "frame",
    "lessons_html",
    "measure",
    "memory_analysis",
    "report",
    "show_time",
    "write",
]

"""What other packages use of reports; importing it imports LLVM, which makes kernels' texts."""

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

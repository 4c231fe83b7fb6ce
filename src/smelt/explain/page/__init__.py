"""The interactive page of a report: one HTML file that requests nothing.

    report.save("x.html")

`collect` adds what the page shows to a report's data, `html` writes the page from that data alone.
"""

from smelt.explain.page.collect import collect
from smelt.explain.page.html import Lesson, frame, html, lessons_html

__all__ = ["Lesson", "collect", "frame", "html", "lessons_html"]

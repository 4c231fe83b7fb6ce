r"""Escape what a terminal would act on in names that users and files choose.

>>> escape_controls("a\x1b[31m\u202e\nb")
'a\\x1b[31m\\u202e\nb'
"""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls except tabs and line ends, and marks that are invisible or change the direction."""


def escape_controls(text: str) -> str:
    """Return text in which control characters and direction marks are escaped."""
    return _CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape", "surrogatepass").decode()

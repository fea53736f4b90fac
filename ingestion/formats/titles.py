"""Titles that a program has written into a file because nobody gave one."""

from __future__ import annotations

import re

_NO_TITLE = re.compile(
    r"\.(?:docx?|tex|dvi|pptx?|xlsx?|pdf|indd|fm|md|html?|rtf|odt)$"
    r"|^untitled\b|^microsoft (?:word|powerpoint|excel)\b|^\(?(?:anonymous|unnamed|no title)\)?$"
    r"|^(?:powerpoint presentation|word document|document\s*\d*|pdf document|none|null)$",
    re.IGNORECASE,
)


def given_title(metadata: str | None) -> str | None:
    """The title in a file's metadata; None for none, for a file name ("x.docx", "Microsoft Word -
    x") and for a placeholder such as "untitled" or reportlab's "(anonymous)".
    """
    title = " ".join((metadata or "").split())
    return title if title and not _NO_TITLE.search(title) else None

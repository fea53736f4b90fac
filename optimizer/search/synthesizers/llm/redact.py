"""Takes secrets out of what is stored or told: keys that are configured, and what looks like one.

Standard library only.
"""

from __future__ import annotations

import os
import re

REMOVED = "[removed]"
_SECRET_NAME = re.compile(r"(_API_KEY|_TOKEN|_SECRET|_PASSWORD|_ACCESS_KEY|_CREDENTIALS)$")
_SECRET_FORM = re.compile(
    r"\b(?:sk|pk|rk|xai)-[A-Za-z0-9_*-]{12,}|\b(?:gsk|hf)_[A-Za-z0-9]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|(?<=Bearer )[^\s\"',]+|(?<=://)[^/\s@]+:[^/\s@]+(?=@)"
)
LEAST_GIVEN, LEAST_NAMED = 4, 12  # characters; shorter values would take ordinary words out


class Redaction:
    """given: secrets that are known beside those of the environment."""

    def __init__(self, *given: str | None) -> None:
        named = [value for name, value in os.environ.items() if _SECRET_NAME.search(name)]
        known = {value for value in given if value and len(value) >= LEAST_GIVEN}
        known |= {value for value in named if len(value) >= LEAST_NAMED}
        self._known = sorted(known, key=len, reverse=True)

    def known(self, text: str) -> str:
        """Without the secrets of this process. For source code and answers, in which what only
        looks like a key is a name."""
        for secret in self._known:
            text = text.replace(secret, REMOVED)
        return text

    def error(self, text: str) -> str:
        """Without them and without anything of their form: providers quote keys in part."""
        return _SECRET_FORM.sub(REMOVED, self.known(text))

"""Folders of the tests, and of data shared between sessions."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Determined before a worker gets a separate folder for temporary files.
SHARED = Path(tempfile.gettempdir()) / f"kernlore-tests-{os.getuid()}"

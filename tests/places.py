"""Where the tests are, and where they keep what stays between sessions."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Found out before a worker gets a folder of its own for temporary files.
SHARED = Path(tempfile.gettempdir()) / f"kernlore-tests-{os.getuid()}"

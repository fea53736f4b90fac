"""How often a process of this program looks for garbage in cycles of objects.

With Python's own settings that is a quarter of what a process costs that imports torch: 3.2 s of a
processor against 2.3 s, because modules come as hundreds of thousands of objects that stay, and
each collection walks through them, the last at the end of the process.
"""

from __future__ import annotations

import atexit
import gc

# Objects until a collection of the youngest, and collections until one of the next older. Python's
# are 700, 10 and 10.
THRESHOLDS = (10_000, 20, 50)


def collect_rarely() -> None:
    """Call it once, before what is large is imported. The end of the process collects nothing."""
    gc.set_threshold(*THRESHOLDS)
    atexit.register(gc.freeze)

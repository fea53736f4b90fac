"""`python draw_page.py FILE INDEX PICTURE`: one page of a PDF as PNG, within limits.

Prints the size of the page in PDF points as JSON. Knows nothing of Kernlore: it is run as a file.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

MISSING = 3  # exit code where the document has no such page
WIDTH = 1100  # pixels, which is sharp at half of a wide window
MAX_PIXELS = 4_000_000  # of a page that is much higher than wide
COLOURS = 64
CPU_SECONDS = 15
MEMORY_BYTES = 2 << 30


def draw(source: Path, index: int, picture: Path) -> int:
    """Write the page with this index, counted from 0; the exit code."""
    import pypdfium2

    document = pypdfium2.PdfDocument(source)
    if not 0 <= index < len(document):
        return MISSING
    page = document[index]
    width, height = page.get_size()
    scale = min(WIDTH / max(1.0, width), (MAX_PIXELS / max(1.0, width * height)) ** 0.5)
    page.render(scale=scale).to_pil().convert("RGB").quantize(COLOURS).save(picture, "PNG")
    print(json.dumps({"width": width, "height": height}))
    return 0


def main() -> int:
    """Read the arguments and draw; the exit code."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    if sys.platform != "darwin":  # which refuses a limit of the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    source, index, picture = sys.argv[1:]
    return draw(Path(source), int(index), Path(picture))


if __name__ == "__main__":
    raise SystemExit(main())

"""The versioned prompt templates: data files whose `{{name}}` places are filled in one pass, so
that nothing inside a filled-in text is interpreted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

VERSION = "v2"
_FOLDER = Path(__file__).parents[1] / "prompts"
_PLACE = re.compile(r"\{\{([a-z_]+)\}\}")


@cache
def template(name: str, version: str = VERSION) -> str:
    return (_FOLDER / version / name).read_text(encoding="utf-8").strip()


@cache
def data(name: str, version: str = VERSION) -> Any:
    """A JSON file beside the templates; not to be changed by the caller."""
    return json.loads((_FOLDER / version / name).read_text(encoding="utf-8"))


def rendered(name: str, values: Mapping[str, str], version: str = VERSION) -> str:
    """The template with its places filled. Raises KeyError for a place without a value: a defect
    of the template."""
    text = template(name, version)
    for place in _PLACE.findall(text):
        if not values[place]:  # an empty part leaves no empty lines behind
            text = re.sub(rf"^\{{\{{{place}\}}\}}\n\n?", "", text, flags=re.M)
    return _PLACE.sub(lambda place: values[place[1]], text).strip() + "\n"

"""Values of texts that ship with the built-in knowledge: search tokens, numbers of prompt tokens,
and terms that documents define. Computing them takes half of the time of building a snapshot.

A value is found by the digest of its text and of all that computes it. A text that has changed, or
any text after a change of that code, is computed, so an outdated file costs time but never gives a
wrong value. `kernlore knowledge vectors` writes the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import structlog

from kb import prompt_tokens, tokens
from kb.prompt_tokens import count_once
from kb.tokens import shadow
from retrieval.snapshot import lexicon, ontology
from retrieval.snapshot.lexicon import SectionTexts, Term, terms_of
from retrieval.snapshot.ontology import load_ontology

FILE = "texts.json.z"
CODE = (tokens, prompt_tokens, lexicon, ontology)
log = structlog.get_logger(__name__)


class TextValues:
    """The values of a file; those that it lacks are computed. Without a file, `computed` keeps all
    values for `write`."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file; without one all values are computed."""
        self._path = path
        self.computed: dict[str, Any] = {}

    def words(self, text: str) -> str:
        """The search tokens of a text, as `kb.tokens.shadow` gives them."""
        return str(self._value("words", text, lambda: shadow(text)))

    def tokens(self, text: str) -> int:
        """The number of tokens of a text in a prompt."""
        return int(self._value("tokens", text, lambda: count_once(text)))

    def terms(self, sections: Sequence[SectionTexts]) -> list[Term]:
        """The terms that a document defines."""
        ids = [section.id for section in sections]

        def computed() -> list[list[Any]]:
            terms = terms_of(sections, load_ontology())
            return [[t.term, t.concept, t.how, t.quote, ids.index(t.section_id)] for t in terms]

        text = orjson.dumps([[section.path, section.texts] for section in sections]).decode()
        found = self._value("terms", text, computed)
        return [Term(term, of, how, quote, ids[at]) for term, of, how, quote, at in found]

    def write(self, path: Path) -> None:
        """Write the computed values."""
        path.write_bytes(zlib.compress(orjson.dumps(self.computed, option=orjson.OPT_SORT_KEYS), 9))

    def _value(self, kind: str, text: str, computed: Callable[[], Any]) -> Any:
        key = blake2b(f"{kind}\n{text}".encode(), digest_size=12, key=_code()).hexdigest()
        value = self._shipped.get(key)
        if value is None:
            value = computed()
            if self._path is None:
                self.computed[key] = value
        return value

    @cached_property
    def _shipped(self) -> dict[str, Any]:
        try:
            shipped: dict[str, Any] = {}
            if self._path is not None:
                shipped = orjson.loads(zlib.decompress(self._path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, zlib.error) as error:
            log.warning("values of texts that ship cannot be read", reason=str(error))
            return {}
        return shipped


@cache
def _code() -> bytes:
    """The digest of the code and data that values depend on, except for their texts and the
    encoding of `kb.prompt_tokens`, which never changes."""
    sources = [Path(str(module.__file__)).read_bytes() for module in CODE]
    stemmer, concepts = version("snowballstemmer"), load_ontology().fingerprint
    return blake2b(b"\n".join((*sources, f"{stemmer} {concepts}".encode()))).digest()

"""Texts as HTML: Markdown of documents and skills, and code with its syntax marked.

Raw HTML in a text is shown as text, links lead to http and https addresses only, and images are
left out, so the output needs no sanitising. Colours are classes of the style sheet.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

MAX_TEXT = 60_000  # characters that are rendered; a longer text is shown as it is
# Names of lexers for the languages of kernels, where they differ.
LEXERS = {"triton": "python", "torch": "python", "hip": "cuda", "gluon": "python", "cute": "python"}
_MARKUP = re.compile(r"`+|\[([^\]]*)\]\([^)]*\)|\*\*")
_HEADING_LEVELS = 3  # by which headings of a text are below those of the page


def markdown(text: str) -> Markup:
    """A text of Markdown as HTML."""
    if len(text) > MAX_TEXT:
        return Markup("<pre>{}</pre>").format(text)
    return Markup('<div class="text">{}</div>').format(Markup(_renderer().render(text)))


def code(text: str, language: str = "") -> Markup:
    """Code with its syntax marked, without the element around it."""
    name = LEXERS.get(language.lower(), language.lower())
    if not name or len(text) > MAX_TEXT:
        return escape(text)
    try:
        lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("c", stripnl=False, ensurenl=False)
    return Markup(highlight(text, lexer, _formatter()))


def plain_title(text: str) -> str:
    """A title without the marks of Markdown."""
    return _MARKUP.sub(lambda match: match[1] or "", str(text)).strip()


@cache
def _formatter() -> HtmlFormatter[str]:
    return HtmlFormatter(nowrap=True, classprefix="k-")


@cache
def _renderer() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _fenced})
    parser.enable("table").disable("image")
    setattr(parser, "validateLink", _is_web_address)  # noqa: B010  a hook of the library
    parser.core.ruler.push("page", _fit_page)
    return parser


def _fenced(text: str, language: str, _: str) -> str:
    return str(code(text, language or "c"))


def _is_web_address(address: str) -> bool:
    return address.startswith(("https://", "http://"))


def _fit_page(state: Any) -> None:
    """Headings below those of the page, no attributes of style, and links without the sender."""
    for token in _all(state.tokens):
        if token.type in ("heading_open", "heading_close"):
            level = min(6, int(token.tag[1]) + _HEADING_LEVELS)
            token.tag = f"h{level}"
        token.attrs.pop("style", None)
        if token.type == "link_open":
            token.attrSet("rel", "noreferrer")


def _all(tokens: list[Token]) -> list[Token]:
    return [each for token in tokens for each in (token, *(token.children or ()))]

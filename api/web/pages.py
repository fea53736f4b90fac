"""Templates, headers, error pages, forms and paging of the web pages.

Templates escape every value. The headers allow the two scripts that the service itself serves, and
no inline script or style, so text of an upload stays text even where escaping was forgotten. Every
page works without scripts; with them, live parts renew themselves. The middleware
`api.http.authorisation` refuses forms of foreign pages before a route is reached.

A form carries out an operation, so `form_route` gives its route the role of that operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import structlog
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from markupsafe import Markup, escape
from sqlalchemy.exc import DBAPIError

from api.http.admission import with_place
from api.http.authorisation import is_session
from api.http.bodies import media_type, read_limited, signed
from api.http.errors import internal_error
from api.http.routes import from_this_machine
from api.operations import Operation
from api.services import Services
from api.strict_json import check_text
from kb import clock
from kb.catalog.database import store_fault
from kb.errors import InvalidRequest, KernloreError, UnsupportedFormat, invalid_fields
from kb.hardware.facts import readable
from kb.settings import product_version

if TYPE_CHECKING:
    from jinja2 import Environment
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from pygments.formatters import HtmlFormatter

log = structlog.get_logger(__name__)
R = TypeVar("R")
ACTOR = "web"
PAGE_SIZE = 50
MAX_PARAMETER = 20_000
MAX_PAGE = 10**6
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]  # of a page of a list
# Pages of the menu, by the first part of their address.
SECTIONS = {
    "retrieve": "Ask",
    "hardware": "Hardware",
    "documents": "Documents",
    "knowledge": "Knowledge",
    "skills": "Skills",
    "runs": "Runs",
    "jobs": "Jobs",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self';"
    " script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer`, forms would be sent with the origin "null", which is refused.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Colours of states.
TONES = {
    **dict.fromkeys(("ready", "active", "accepted", "correct", "finished", "present"), "good"),
    **dict.fromkeys(("failed", "rejected", "incorrect", "crashed", "missing", "retired"), "bad"),
    **dict.fromkeys(
        ("not_compiled", "unsupported", "timed_out", "quarantined", "cancelled"), "bad"
    ),
    **dict.fromkeys(("partial", "proposed", "candidate", "suspect", "thin"), "warn"),
    **dict.fromkeys(("queued", "running", "starting", "inherited"), "busy"),
}


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # 0.1 s, for pages alone

    environment = Environment(
        loader=PackageLoader("api.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["query"] = lambda values: urlencode(_given(values), doseq=True)
    environment.filters["figure"] = figure
    environment.filters["quantity"] = quantity
    environment.filters["moment"] = moment
    environment.filters["words"] = words_of
    environment.filters["markdown"] = markdown
    environment.filters["code"] = code
    environment.filters["title_of"] = plain_title
    environment.filters["duration"] = clock.time_left
    environment.filters["tone"] = lambda state: TONES.get(str(state), "plain")
    environment.filters["chip_label"] = lambda chip: (
        chip.name if chip.name == chip.id else f"{chip.name} ({chip.id})"
    )
    environment.filters["options"] = lambda ids: [(i, str(i).replace("_", " ")) for i in ids]
    environment.globals["version"] = product_version()
    environment.globals["menu"] = SECTIONS
    return environment


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", 1, [], ())}


def quantity(value: Any, unit: str) -> str:
    """A value with its unit as a person reads it: 192 KiB, 860 GB/s."""
    return figure(value) if unit in ("count", "text", "") else readable(value, unit)


def figure(value: Any) -> str:
    """A number as a person reads it: thousands apart, at most four figures of a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}"


def words_of(key: str) -> str:
    """The key of a fact as words: Peak FP32, L2 size."""
    text = " ".join(word.upper() if re.search(r"\d", word) else word for word in key.split("_"))
    return text[:1].upper() + text[1:]


def moment(stored: Any) -> str:
    """A stored time as a person reads it, to the minute. It is UTC, like all stored times."""
    text = str(stored)
    return f"{text[:10]} {text[11:16]} UTC"


def page(request: Request, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
    """The template as a response; `root` is the path prefix of a proxy."""
    root = request.scope.get("root_path", "")
    query = f"?{request.url.query}" if request.url.query else ""
    text = (
        _environment()
        .get_template(template)
        .render(
            root=root,
            ui=f"{root}/ui",
            path=request.url.path.removeprefix(root),
            logged_in=is_session(request.scope),
            here=f"{request.url.path}{query}",
            **values,
        )
    )
    return HTMLResponse(text, status_code=status, headers=HEADERS)


def is_fragment(request: Request) -> bool:
    """Whether a script of a page asks for a part of it."""
    return request.headers.get("hx-request") == "true"


def see_other(request: Request, path: str) -> RedirectResponse:
    """Send the browser to a page below /ui, so that reloading it repeats nothing."""
    root = request.scope.get("root_path", "")
    return RedirectResponse(f"{root}/ui{path}", status_code=303)


class PageRoute(APIRoute):
    """Answers every error with a page that has a hint."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handler(request)
            except KernloreError as error:
                return error_page(request, error)
            except RequestValidationError as error:
                problems = [{**p, "loc": p["loc"][1:] or p["loc"]} for p in error.errors()]
                return error_page(request, invalid_fields(problems))
            except Exception as error:  # boundary: a fault that is not the store's is logged
                fault = store_fault(error) if isinstance(error, (DBAPIError, OSError)) else None
                if fault is not None:
                    return error_page(request, fault)
                log.exception("request failed", route=self.path, method=request.method)
                bound = structlog.contextvars.get_contextvars()
                return error_page(request, internal_error(bound.get("request_id", "")))

        return answered


def error_page(request: Request, error: KernloreError) -> HTMLResponse:
    """The page for an error, with its hint, the nearest ids, and the ways out."""
    phrase = HTTPStatus(error.status).phrase
    root = request.scope.get("root_path", "")
    section = request.url.path.removeprefix(root).split("/")[2:3]
    came = urlsplit(request.headers.get("referer", ""))
    back = came.path if came.netloc == request.url.netloc and came.path else ""
    if back and came.query:
        back += f"?{came.query}"
    return page(
        request,
        "error.html",
        error.status,
        error=error,
        phrase=phrase,
        section=section[0] if section and section[0] in SECTIONS else "",
        back=back if back != request.url.path or request.method == "POST" else "",
        near=error.details.get("nearest") or () if "hardware" in error.details else (),
    )


async def check_query(request: Request) -> None:
    """Refuse text that cannot be stored or searched. Raises InvalidRequest."""
    for name, value in request.query_params.multi_items():
        check_text(value, name[:80])
        if len(value) > MAX_PARAMETER:
            raise InvalidRequest(
                f"{name[:80]} has {len(value):,} characters; the limit is {MAX_PARAMETER:,}",
                hint="Shorten it, or send it with the form of the page.",
            )


def page_router(prefix: str) -> APIRouter:
    """Pages below an address; each refuses a query that cannot be used."""
    return APIRouter(
        prefix=prefix,
        route_class=PageRoute,
        include_in_schema=False,
        dependencies=[Depends(check_query)],
    )


# The operation that each form carries out, by its route.
FORMS: dict[str, Operation[Any, Any]] = {}


def form_route(
    router: APIRouter, path: str, operation: Operation[Any, Any]
) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
    """The route of a form that carries out an operation, with the same rules as its own route."""
    checks = [Depends(from_this_machine)] if operation.runs_code else []
    FORMS[f"POST {router.prefix}{path}"] = operation
    route = router.post(path, dependencies=checks)
    return lambda f: route(with_place(f) if operation.computes else f)


def carry_out(
    request: Request, services: Services, operation: Operation[Any, R], **given: Any
) -> R:
    """Carry an operation out with the fields of a form, in the name of the caller. Raises
    InvalidRequest for fields that the operation does not take."""
    if any(i.name == "actor" for i in operation.inputs):
        given["actor"] = signed(request, given.get("actor", ACTOR))
    return operation(services, **operation.checked(given))


def check_box(form: Form, undone: str) -> None:
    """Raise InvalidRequest where the box that confirms a form is not ticked."""
    if form.text("sure") != "yes":
        raise InvalidRequest(undone, hint="Tick the box next to the button, then press it again.")


@dataclass(frozen=True)
class Form:
    """The fields of a form that was sent, in their order."""

    items: tuple[tuple[str, str], ...]

    def text(self, name: str) -> str:
        """The first value of a field, stripped; empty for an absent field."""
        return next((value.strip() for key, value in self.items if key == name), "")

    def values(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for key, value in self.items if key == name]

    def listed(self, name: str) -> list[str]:
        """The parts of a field that holds a list with commas or lines."""
        parts = self.text(name).replace("\n", ",").split(",")
        return [part.strip() for part in parts if part.strip()]


async def _read_form(request: Request) -> Form:
    kind = media_type(request)
    if kind != "application/x-www-form-urlencoded":
        raise UnsupportedFormat(
            f"{kind or 'a body without content type'} where a form belongs",
            hint="Use the form of the page; programs use the routes that /docs lists.",
        )
    limit = request.app.state.settings.max_body_bytes
    raw = await read_limited(request, limit, "form", "KERNLORE_MAX_BODY_BYTES")
    text = raw.decode("ascii", "replace")
    items = parse_qsl(text, keep_blank_values=True, max_num_fields=2_000)
    return Form(tuple((name, check_text(value, name[:80])) for name, value in items))


SentForm = Annotated[Form, Depends(_read_form)]


class Page(NamedTuple):
    """The rows of one page of a list, its number, and the number of pages and rows."""

    rows: Sequence[Any]
    number: int
    pages: int
    total: int


def counted(rows: Sequence[Any], number: int, total: int, size: int = PAGE_SIZE) -> Page:
    """A page whose rows the store has chosen."""
    return Page(rows, number, max(1, -(-total // size)), total)


def paged(rows: Sequence[Any], number: int, size: int = PAGE_SIZE) -> Page:
    """The rows of a page, counted from 1; a number after the last means the last."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(number, 1), pages)
    return Page(rows[(number - 1) * size : number * size], number, pages, len(rows))


# -- texts as HTML: Markdown of documents and skills, and code with its syntax marked

MAX_TEXT = 60_000  # characters that are rendered; a longer text is shown as it is
# Names of lexers for the languages of kernels, where they differ.
LEXERS = {"triton": "python", "torch": "python", "hip": "cuda", "gluon": "python", "cute": "python"}
_MARKUP = re.compile(r"`+|\[([^\]]*)\]\([^)]*\)|\*\*|(?<![\w*])[*_](\S[^*_]*\S|\S)[*_](?![\w*])")
# Roles of reStructuredText, with which passages quote their manuals: :ref:`text <target>`.
_ROLE = re.compile(
    r"(?<![\w`]):[a-z][\w:+.-]*:`([^`<]*[^`<\s])?\s*(?:<([^`>]*)>)?`|\\ ?(?=``)|(?<=``)\\ "
)
_HEADING_LEVELS = 3  # levels that headings of a text are moved down below those of the page


def markdown(text: str, levels: int = _HEADING_LEVELS) -> Markup:
    """A text of Markdown as HTML; its headings move down by `levels`."""
    if len(text) > MAX_TEXT:
        return Markup("<pre>{}</pre>").format(text)
    text = _ROLE.sub(lambda match: match[1] or match[2] or "", text)
    rendered = _renderer().render(text, {"levels": levels}).replace("<pre>", '<pre tabindex="0">')
    return Markup('<div class="text">{}</div>').format(Markup(rendered))


def code(text: str, language: str = "") -> Markup:
    """Code with its syntax marked, without the element around it."""
    name = LEXERS.get(language.lower(), language.lower())
    if not name or len(text) > MAX_TEXT:
        return escape(text)
    from pygments import highlight
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("c", stripnl=False, ensurenl=False)
    return Markup(highlight(text, lexer, _formatter()))


def plain_title(text: str) -> str:
    """A title without the marks of Markdown."""
    return _MARKUP.sub(lambda match: match[1] or match[2] or "", str(text)).strip()


@cache
def _formatter() -> HtmlFormatter[str]:
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter(nowrap=True, classprefix="k-")


@cache
def _renderer() -> MarkdownIt:
    from markdown_it import MarkdownIt

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
            level = min(6, int(token.tag[1]) + state.env["levels"])
            token.tag = f"h{level}"
        token.attrs.pop("style", None)
        if token.type == "link_open":
            token.attrSet("rel", "noreferrer")


def _all(tokens: list[Token]) -> list[Token]:
    return [each for token in tokens for each in (token, *(token.children or ()))]

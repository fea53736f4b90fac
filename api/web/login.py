"""Login with a key, and logout, where the store has keys."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request, Response

from api.http.authorisation import COOKIE, session_of
from api.http.routes import Parts
from api.web.pages import SentForm, error_page, page, page_router, see_other
from kb.catalog.keys import SESSION_SECONDS
from kb.errors import KernloreError, Unauthorized

router = page_router("/ui")


def refused_page(request: Request, error: KernloreError) -> Response:
    """The login form where a key is missing, else the error."""
    if not isinstance(error, Unauthorized):
        return error_page(request, error)
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    query = f"?{request.url.query}" if request.url.query else ""
    goal = f"{path}{query}" if request.method == "GET" else ""
    return _form(request, goal, error.message, error.status)


@router.get("/login")
def form(request: Request) -> Response:
    """The form itself."""
    return _form(request, "", "", 200)


@router.post("/login")
def log_in(request: Request, services: Parts, sent: SentForm) -> Response:
    """Open a session with a key, and redirect to the page that the browser requested."""
    key = services.keys.find(sent.text("key"))
    goal = local_path(sent.text("next"))
    if key is None:
        message = "This key is not valid: unknown, expired or revoked."
        return _form(request, goal, message, Unauthorized.status)
    secret = services.keys.open_session(key)
    answer = see_other(request, goal.removeprefix("/ui"))
    answer.set_cookie(
        COOKIE,
        secret,
        max_age=SESSION_SECONDS,
        path=request.scope.get("root_path", "") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post("/logout")
def log_out(request: Request, services: Parts) -> Response:
    """End the session."""
    services.keys.close_session(session_of(request.headers))
    answer = see_other(request, "/login")
    answer.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
    return answer


def local_path(goal: str) -> str:
    """A path of the pages, or the first page: a form must not lead to another site."""
    parts = urlsplit(goal)
    inside = parts.path == "/ui" or parts.path.startswith("/ui/")
    if parts.scheme or parts.netloc or not inside or "\\" in goal or len(goal) > 2_000:
        return "/ui"
    return goal


def _form(request: Request, goal: str, message: str, status: int) -> Response:
    return page(request, "login.html", status, goal=goal and local_path(goal), message=message)

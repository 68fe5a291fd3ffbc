"""The page as an app: a few addresses, each as HTML for people and as JSON under /api/ with the same fields.

    GET  /            what to act on, rounds, what changed, what jobs paid
    GET  /fleet       nodes by hardware group and hazard, to be filtered
    GET  /mismatches  workloads by hardware groups
    GET  /hazards     hazards by age
    GET  /fabric      parts of the fabric that votes suspect, slow groups; /plans: tests, placement, spares
    GET  /findings    all findings, to be filtered; /findings/KEY one of them
    GET  /login, POST /login, POST /logout

Without a session an address of a person leads to /login, one of /api/ is refused. Nothing here changes the store.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from crypto.errors import PharoahError
from federation.base.visible import json_text
from federation.base.web.guard import STYLE, Asgi, guarded
from provider_server.program.pages.findings import ORDERS, FindingRow, filtered
from provider_server.program.pages.fleet import shown
from provider_server.program.pages.html import renderer
from provider_server.program.pages.login import Door, TooManyAttempts, WrongPassword
from provider_server.program.pages.views import View

MOST_FORM_BYTES = 4096
STATIC = Path(__file__).with_name("static")
OPEN = ("/login", "/static/", "/style/")
POLICY = b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
ONLY_TLS = (b"strict-transport-security", b"max-age=31536000")
PAGES = {"/": "overview", "/mismatches": "mismatches", "/hazards": "hazards"}
PAGES |= {"/fabric": "fabric", "/plans": "plans"}
_page = renderer()


def page_app(look: Callable[[], View], door: Door, *, over_tls: bool) -> Asgi:
    """The ASGI app; `look` gives what there is to show at the moment."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    cookies = Cookies(over_tls=over_tls)
    entrance, pages = Entrance(door, cookies), Pages(look, door, cookies)
    app.middleware("http")(entrance.only_inside)
    app.get("/login")(entrance.ask)
    app.post("/login")(entrance.log_in)
    app.post("/logout")(entrance.log_out)
    for path in PAGES:
        app.get(path)(pages.page)
    app.get("/fleet")(pages.fleet)
    app.get("/findings")(pages.findings)
    app.get("/findings/{key}")(pages.finding)
    app.get("/api/findings/{key}")(pages.api_finding)
    app.get("/api/{part}")(pages.api)
    app.exception_handler(HTTPException)(_not_there)
    app.exception_handler(PharoahError)(_not_now)
    app.mount("/static", StaticFiles(directory=STATIC))
    app.mount("/style", StaticFiles(directory=STYLE))
    return guarded(app, (*HEADERS, ONLY_TLS) if over_tls else HEADERS, for_other_machines=over_tls)


class Cookies:
    """The session's cookie: no script sees it, no other site makes the browser send it, over TLS no other way does."""

    def __init__(self, *, over_tls: bool) -> None:
        self.secure = over_tls
        self.name = "__Host-pharoah-provider" if over_tls else "pharoah-provider"

    def of(self, request: Request) -> str:
        """The name that a request shows; empty without."""
        return request.cookies.get(self.name, "")

    def put(self, response: Response, name: str) -> None:
        """Gives a name to keep until the browser is closed."""
        response.set_cookie(self.name, name, httponly=True, samesite="strict", secure=self.secure, path="/")


class Entrance:
    """Logging in and out, and the refusal of everything else without a session."""

    def __init__(self, door: Door, cookies: Cookies) -> None:
        self._door = door
        self._cookies = cookies

    async def only_inside(self, request: Request, call_next: Callable[[Request], Any]) -> Response:
        """Answers those who are in, and shows the others the door."""
        path = request.url.path
        if path.startswith(OPEN) or await run_in_threadpool(self._door.is_in, self._cookies.of(request)):
            answered: Response = await call_next(request)
            return answered
        if path.startswith("/api/"):
            return JSONResponse({"error": "NotLoggedIn", "what": "there is no session", "hint": "log in first"}, 401)
        return RedirectResponse("/login", 303)

    def ask(self) -> Response:
        """The form, with a cookie that it belongs to."""
        return self._form()

    async def log_in(self, request: Request) -> Response:
        """A session under a new name for the right password."""
        sent = await _form(request)
        if not self._door.is_form_of(self._cookies.of(request), sent.get("csrf", "")):
            return self._form(403, "This form is not from here, or too old. Try again.")
        address = request.client.host if request.client else ""
        try:
            name = await run_in_threadpool(self._door.enter, address, sent.get("password", ""))
        except (WrongPassword, TooManyAttempts) as error:
            status = 429 if isinstance(error, TooManyAttempts) else 403
            return self._form(status, f"{error.what[:1].upper()}{error.what[1:]}: {error.hint}.")
        answer = RedirectResponse("/", 303)
        self._cookies.put(answer, name)
        return answer

    async def log_out(self, request: Request) -> Response:
        """The session's end, if its own page asks for it."""
        name = self._cookies.of(request)
        if not self._door.is_form_of(name, (await _form(request)).get("csrf", "")):
            raise HTTPException(403, "this form is not from here")
        self._door.leave(name)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(self._cookies.name, path="/", secure=self._cookies.secure)
        return answer

    def _form(self, status: int = 200, wrong: str = "") -> Response:
        visitor = self._door.new_name()
        answer = HTMLResponse(_page("login", csrf=self._door.form_token(visitor), wrong=wrong), status)
        self._cookies.put(answer, visitor)
        return answer


class Pages:
    """What there is to see, for people and for programs."""

    def __init__(self, look: Callable[[], View], door: Door, cookies: Cookies) -> None:
        self._look = look
        self._door = door
        self._cookies = cookies

    def page(self, request: Request) -> Response:
        """One of `PAGES`."""
        return self._shown(request, PAGES[request.url.path], view=self._look())

    def fleet(self, request: Request, text: str = "", raised: str = "") -> Response:
        """The nodes that are asked for."""
        view = self._look()
        groups = shown(view.fleet, text, raised=bool(raised))
        return self._shown(request, "fleet", view=view, groups=groups, text=text, raised=raised)

    def findings(self, request: Request, judgement: str = "", text: str = "", order: str = "probability") -> Response:
        """The findings that are asked for."""
        view = self._look()
        known = sorted({one.judgement for one in view.findings})
        asked = {"judgement": judgement, "text": text, "judgements": known, "order": order, "orders": tuple(ORDERS)}
        rows = filtered(view.findings, judgement, text, order)
        return self._shown(request, "findings", view=view, shown=rows, **asked)

    def finding(self, request: Request, key: str) -> Response:
        """One finding."""
        return self._shown(request, "finding", finding=_one(self._look(), key))

    def api_finding(self, key: str) -> Response:
        """One finding, as JSON."""
        return _json(_one(self._look(), key))

    def api(self, part: str) -> Response:
        """A part of the view, as JSON."""
        fields = asdict(self._look())
        if part not in fields:
            raise HTTPException(404, f"the parts are {', '.join(fields)}")
        return _json(fields[part])

    def _shown(self, request: Request, name: str, **given: Any) -> Response:
        csrf = self._door.form_token(self._cookies.of(request))
        return HTMLResponse(_page(name, csrf=csrf, at=request.url.path, **given))


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small form; empty for anything else."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_FORM_BYTES:
            raise HTTPException(413, "this form is too large")
    return {name: values[-1] for name, values in parse_qs(body.decode("latin-1"), encoding="utf-8").items()}


def _one(view: View, key: str) -> FindingRow:
    for one in view.findings:
        if one.key == key:
            return one
    raise HTTPException(404, "the newest bundle has no such finding")


def _not_there(request: Request, error: Exception) -> Response:
    """404 and the like; Starlette hands over what it was registered for."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _failed(request, status, str(getattr(error, "detail", error)), "")


def _not_now(request: Request, error: Exception) -> Response:
    """The store is away, or something in it is damaged."""
    what, hint = (error.what, error.hint) if isinstance(error, PharoahError) else (str(error), "")
    return _failed(request, 503, what, hint)


def _failed(request: Request, status: int, what: str, hint: str) -> Response:
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": status, "what": what, "hint": hint}, status)
    return HTMLResponse(_page("failed", what=what, hint=hint), status)


def _json(value: object) -> Response:
    return Response(json_text(value), media_type="application/json")

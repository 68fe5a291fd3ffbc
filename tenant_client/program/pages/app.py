"""The tenant's page as an app.

    GET /?token=…           the printed address: exchanged for a cookie, once; who has the cookie is led to /
    GET /                   last failures, running jobs, checks (?check=VERDICT, ?order=…), jobs, hints, budget
    GET /attempts           what ran and how it ended, all or ?job=LEASE
    GET /expectations       jobs against targets, with error budgets
    GET /paths              jobs with logs of an attempt; /paths/LEASE: ways between their hosts
    GET /sent               everything that left, by kind
    GET /sent/ROUND         a contribution, part by part; /sent/ROUND/bytes is the message itself
    GET /sent/ROUND/PART    the words of one part, each with its cell

Long tables go on at ?first=…. There is nothing to change here: no address takes anything but GET.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from crypto.errors import PharoahError
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.web.guard import STYLE, Asgi, guarded
from tenant_client.doctor.run.lease_paths import lease_paths
from tenant_client.program.pages.html import renderer
from tenant_client.program.pages.key import Key
from tenant_client.program.pages.views import ORDERS, NoFederation, called, house, journal, pairs, runs
from tenant_client.rounds.disclosure.expected import expected

if TYPE_CHECKING:  # messages need the extra `federation`, and no other page does
    from tenant_client.program.pages.outbox import Message

COOKIE = "pharoah-tenant"
POLICY = (
    b"default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = ((b"content-security-policy", POLICY), (b"referrer-policy", b"no-referrer"))
ROWS_AT_ONCE = 100
First = Annotated[int, Query(ge=0)]
_page = renderer()


def page_app(home: Path, key: Key, now_h: Callable[[], float]) -> Asgi:
    """The ASGI app for the home of one tenant; `now_h` gives hours since 1970."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pages = Pages(home, now_h)
    app.middleware("http")(_only_with(key))
    app.get("/")(pages.jobs)
    app.get("/attempts")(pages.attempts)
    app.get("/expectations")(pages.expectations)
    app.get("/paths")(pages.paths)
    app.get("/paths/{lease}")(pages.path)
    app.get("/sent")(pages.sent)
    app.get("/sent/{round_id}")(pages.contribution)
    app.get("/sent/{round_id}/bytes")(pages.raw)
    app.get("/sent/{round_id}/{number}")(pages.part)
    app.exception_handler(HTTPException)(_not_there)
    app.exception_handler(PharoahError)(_not_now)
    app.mount("/style", StaticFiles(directory=STYLE))
    return guarded(app, HEADERS)


def _only_with(key: Key) -> Callable[[Request, Callable[[Request], Any]], Any]:
    async def only_with_key(request: Request, call_next: Callable[[Request], Any]) -> Response:
        token = request.query_params.get("token")
        is_let_in = key.fits(request.cookies.get(COOKIE, ""))
        if token is not None:
            return RedirectResponse("/", 303) if is_let_in else _exchanged(key, token)
        if not request.url.path.startswith("/style/") and not is_let_in:
            return HTMLResponse(_page("closed"), 403)
        answered: Response = await call_next(request)
        return answered

    return only_with_key


def _exchanged(key: Key, token: str) -> Response:
    secret = key.exchange(token)
    if secret is None:
        return HTMLResponse(_page("closed"), 403)
    answer = RedirectResponse("/", 303)
    answer.set_cookie(COOKIE, secret, httponly=True, samesite="strict", path="/")
    return answer


class Pages:
    """What there is to see, read anew each time."""

    def __init__(self, home: Path, now_h: Callable[[], float]) -> None:
        self._home = home
        self._now_h = now_h

    def jobs(self, request: Request, first: First = 0, check: str = "", order: str = "check") -> Response:
        """What failed, what runs, whether the hardware fits, and all the rest of a home."""
        seen = house(self._home, self._now_h())
        asked = {"check": check, "order": order, "orders": tuple(ORDERS)}
        given = {"house": seen, "pairs": pairs(seen.leases, check, order), "first": first, "step": ROWS_AT_ONCE}
        return _shown(request, "jobs", **asked, **given)

    def attempts(self, request: Request, first: First = 0, job: str = "") -> Response:
        """What ran and how it ended; of one lease if it is named."""
        return self._of_house(request, "attempts", first, job=job)

    def expectations(self, request: Request, first: First = 0) -> Response:
        """Leases against their targets."""
        seen = expected(journal(self._home), self._home, SECONDS_PER_HOUR * self._now_h())
        return _shown(request, "expectations", seen=seen, jobs=called(self._home), first=first, step=ROWS_AT_ONCE)

    def paths(self, request: Request, first: First = 0) -> Response:
        """Leases whose attempts left logs."""
        return _shown(request, "paths", runs=runs(self._home), jobs=called(self._home), first=first, step=ROWS_AT_ONCE)

    def path(self, request: Request, lease: str) -> Response:
        """The ways between the hosts of a lease."""
        if lease not in runs(self._home):
            raise HTTPException(404, "no attempt of this lease left logs here")
        found = lease_paths(self._home, lease, self._now_h())
        return _shown(
            request, "path", job=called(self._home).get(lease, lease), graph=found.graph, routes=found.between_hosts()
        )

    def sent(self, request: Request, first: First = 0) -> Response:
        """Everything that left, by kind."""
        return self._of_house(request, "sent", first)

    def contribution(self, request: Request, round_id: str) -> Response:
        """One message, part by part."""
        sent = self._message(round_id)
        from tenant_client.program.pages.outbox import WORD_BYTES

        return _shown(request, "contribution", message=sent, words=WORD_BYTES)

    def raw(self, round_id: str) -> Response:
        """The message itself."""
        name = {"content-disposition": f'attachment; filename="contribution-{round_id[:12]}.bin"'}
        return Response(self._message(round_id).data, media_type="application/octet-stream", headers=name)

    def part(self, request: Request, round_id: str, number: int, first: First = 0) -> Response:
        """Words of one part, each with its cell."""
        sent = self._message(round_id)
        from tenant_client.program.pages.outbox import WORD_BYTES, WORDS_AT_ONCE, words

        if not 0 <= number < len(sent.parts):
            raise HTTPException(404, "the message has no such part")
        row = sent.parts[number].part
        given = {"message": sent, "number": number, "row": row, "first": first, "step": WORDS_AT_ONCE}
        return _shown(request, "part", words=words(sent, number, first), count=row.length // WORD_BYTES, **given)

    def _of_house(self, request: Request, name: str, first: int, **given: str) -> Response:
        return _shown(request, name, house=house(self._home, self._now_h()), first=first, step=ROWS_AT_ONCE, **given)

    def _message(self, round_id: str) -> "Message":
        try:
            from tenant_client.program.pages.outbox import message
        except ModuleNotFoundError as error:
            raise NoFederation(f"the module {error.name} is not installed") from error
        found = message(self._home, round_id)
        if found is None:
            raise HTTPException(404, "this tenant did not answer this round")
        return found


def _shown(request: Request, name: str, **given: Any) -> Response:
    return HTMLResponse(_page(name, at=request.url.path, **given))


def _not_there(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return HTMLResponse(_page("failed", what=str(getattr(error, "detail", error)), hint=""), status)


def _not_now(_: Request, error: Exception) -> Response:
    """The home is not what it should be, or its disk does not answer."""
    what, hint = (error.what, error.hint) if isinstance(error, PharoahError) else (str(error), "")
    return HTMLResponse(_page("failed", what=what, hint=hint), 503)

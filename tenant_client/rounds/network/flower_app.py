"""A tenant's answers as a Flower ClientApp.

- Every message of a known verb has one reply: the bytes that `answer` returned, or an error with its class and, of a
  plan that the policy refuses, the rule with its limit (`federation.protocol.refusals`). The text of an error stays in
  the tenant's log, since it may quote the tenant's data; of a bug not even the class leaves.
  Without this, Flower would send the text of any exception to the provider.
- What the provider speaks comes with each question; one that is two versions away is refused (`VersionsApart`).
- Replies are padded to whole units (`federation.protocol.queries`); the node paces them.

Not promised: that a refusal looks like an answer. Flower refuses messages of unknown verbs.

    app = client_app(lambda verb, payload: tenant.answer(verb, payload))
"""

import logging

from crypto.errors import DecodeError, PharoahError
from federation.protocol.queries import BLOB, RECORD, Answer, Fault, Query, unwrap, wrap
from federation.protocol.refusals import Refused
from federation.protocol.versions import asked_in
from tenant_client.rounds.network.flower import ClientApp, ConfigRecord, Context, Error, Message, RecordDict

logger = logging.getLogger(__name__)


def client_app(answer: Answer) -> ClientApp:
    """The ClientApp that puts every question to `answer`, one at a time."""
    app = ClientApp()
    for verb in Query:
        _register(app, verb, answer)
    return app


def _register(app: ClientApp, verb: Query, answer: Answer) -> None:
    @app.query(verb.value)
    def reply(message: Message, _context: Context) -> Message:
        said = _said(verb, message, answer)
        return Message(said, reply_to=message)


def _said(verb: Query, message: Message, answer: Answer) -> RecordDict | Error:
    try:
        return RecordDict({RECORD: ConfigRecord({BLOB: wrap(answer(verb, _payload(message)))})})
    except PharoahError as error:
        logger.warning("no answer to %s: %s; %s", verb, error.what, error.hint)
        return Error(Fault.of(error), str(Refused.of(error)))
    except Exception:  # a bug stays a bug, in this log; its text must not reach the provider
        logger.exception("no answer to %s: a bug of the tenant client", verb)
        return Error(Fault.BUG, "Bug")


def _payload(message: Message) -> bytes:
    if message.has_error():
        raise DecodeError("an error came instead of a question")
    hello, payload = unwrap(message.content)
    asked_in.set(hello.spoken_with("the provider", "this tenant"))
    return payload

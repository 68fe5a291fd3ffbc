"""Something on the loopback that programs post to: `receiver` hands over what came, and answers with a status."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Take = Callable[[str, Message, bytes], int]


@contextlib.contextmanager
def receiver(take: Take) -> Iterator[str]:
    """The server's URL, without a slash at its end; `take` gets path, header and body, and says the status."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server looks for
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(take(self.path, self.headers, body))
            self.send_header("content-type", self.headers["content-type"])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as it is there
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

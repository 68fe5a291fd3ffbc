"""nginx for tests, with the sample configuration of `ops/nginx` at ports of the test."""

import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests import needs
from tests.support.waiting import until

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "ops/nginx"
MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
HOST = "127.0.0.1"
AROUND = """load_module {module};
daemon off;
pid {folder}/pid;
error_log {folder}/log;
worker_processes 1;
events {{ }}
"""
HTTP = """http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
"""


@contextmanager
def nginx(name: str, ports: Mapping[int, int]) -> Iterator[None]:
    """Runs `ops/nginx/NAME` with other ports than those in it; the test is skipped without nginx and its module."""
    program = needs.program("nginx")
    if not MODULE.is_file():
        pytest.skip("nginx has no stream module here: Debian's package libnginx-mod-stream adds it")
    text = (CONFIGURATIONS / name).read_text()
    named = {str(there): str(own) for there, own in ports.items()}
    assert all(there in text for there in named), f"{name} does not name all of {sorted(named)}"
    text = re.sub(rf"\b({'|'.join(named)})\b", lambda found: named[found[1]], text)
    with TemporaryDirectory(prefix="nginx") as folder:
        configuration = Path(folder) / "nginx.conf"
        configuration.write_text(
            AROUND.format(module=MODULE, folder=folder) + text.replace("http {", HTTP.format(folder=folder))
        )
        command = [str(program), "-p", folder, "-c", str(configuration), "-e", f"{folder}/log"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                until(lambda: all(map(_is_open, _listened(text))), "nginx listens")
                yield
            finally:
                process.terminate()


def _listened(text: str) -> list[int]:
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [int(line.rpartition(":")[2].strip("listen ;")) for line in lines if line.startswith("listen")]


def _is_open(port: int) -> bool:
    try:
        with closing(socket.create_connection((HOST, port))):
            return True
    except OSError:
        return False

"""May a job use this node: what the verb prints, and what NVRx hears, by its published format."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import AF_UNIX, socket as unix_socket

import grpc
import pytest

from federation.base.clock import now_hour
from pharoah_nodes.check import HOUR_S, NoSocket, check, served
from provider_server.fleet.hints.node_reports import FILE, STALE_H, NodeReport, keep
from provider_server.program.cli import app
from tests import needs
from tests.provider_server.program.test_node_outputs import FABRIC, HEARD, HOT, HOUR, QUIET, SILENT
from tests.support import calling, schemas

NOW_S = (HOUR + 0.5) * HOUR_S


@pytest.mark.parametrize(
    ("report", "at_h", "code", "standing"),
    [
        (QUIET, HOUR, 0, "ok"),
        (HOT, HOUR, 1, "raised"),
        (FABRIC, HOUR, 0, "ok"),  # below the level that is asked for
        (SILENT, HOUR, 0, "unknown"),
        (None, HOUR, 0, "unknown"),
        (HOT, HOUR + STALE_H + 1, 0, "unknown"),
    ],
)
def test_only_a_node_that_is_heard_and_raised_is_refused(
    report: NodeReport | None, at_h: int, code: int, standing: str
) -> None:
    answer = check("n", report, at_h * HOUR_S, 2)
    assert (answer["exit_code"], answer["standing"]) == (code, standing)
    assert "\n" not in answer["line"]


run = partial(calling.call, app, "nodes", "check")


def test_the_verb_answers_in_a_line_or_json_and_fails_open(tmp_path: Path) -> None:
    now = int(now_hour())
    file = tmp_path / FILE
    keep(tmp_path, [NodeReport("n2", now, 2, HEARD, "memory", 4, "H100")])
    line = run("n2", "--file", file)
    assert (line.exit_code, line.stdout) == (
        1,
        "n2: raised: wear level 2, suspected: memory (hardware group 4: H100)\n",
    )
    assert run("n2", "--file", file, "--level", 3).exit_code == 0
    told = run("n2", "--home", tmp_path, "--json")
    assert told.exit_code == 1
    assert schemas.held("pharoah-provider nodes check", told.stdout)["hour"] == now
    assert run("n1", "--home", tmp_path).stdout == "n1: unknown: no report\n"
    file.write_text("{")
    damaged = run("n2", "--file", file)
    assert (damaged.exit_code, damaged.stdout) == (0, "n2: unknown: no report\n")
    assert "DecodeError" in damaged.stderr
    away = run("n2", "--prometheus", "http://127.0.0.1:1")
    assert (away.exit_code, away.stdout) == (0, "n2: unknown: no report\n")
    assert "ConnectError" in away.stderr
    assert "not a name" in run('n"} or up{job="', "--prometheus", "http://127.0.0.1:1").stderr


def test_nvrx_asks_at_the_socket_and_hears_of_a_raised_node(tmp_path: Path) -> None:
    health_check = needs.package("nvidia_resiliency_ext.shared_utils.health_check")
    if not hasattr(health_check, "NodeHealthCheck"):
        pytest.skip("this nvidia_resiliency_ext has no NodeHealthCheck: 0.6 or newer has it")
    asked = [HOT]
    socket = tmp_path / "nvhcd.sock"
    assert health_check.NodeHealthCheck(socket_path=str(socket))() is True  # not deployed
    with served(socket, lambda: check("n", asked[0], NOW_S, 2)):
        ask = health_check.NodeHealthCheck(endpoint=f"unix://{socket}")
        assert ask() is False
        asked[0] = QUIET
        assert ask() is True
        asked[0] = SILENT
        assert ask() is True


def test_the_socket_answers_in_the_published_fields(tmp_path: Path) -> None:
    socket = tmp_path / "nvhcd.sock"
    with unix_socket(AF_UNIX) as leftover:
        leftover.bind(str(socket))
    with served(socket, lambda: check("n2", HOT, NOW_S, 2)), grpc.insecure_channel(f"unix:{socket}") as channel:
        ask: Callable[..., bytes] = channel.unary_unary("/nvhcd.HealthCheckService/RunHealthCheck")
        answer = ask(b"\x0a\x01a", timeout=10.0)
    assert answer.startswith(b"\x10\x01\x1a")  # not success (0 is left out), exit code 1, a text
    output = json.loads(answer[answer.index(b"{") :])
    assert output["fail_count"] == 1
    assert output["failed_checks"] == ["n2: raised: wear level 2, suspected: memory (hardware group 4: H100)"]


def test_a_file_where_the_socket_should_be_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("mine")
    with pytest.raises(NoSocket, match="notes"), served(file, lambda: check("n1", None, NOW_S, 2)):
        pass
    with pytest.raises(NoSocket), served(tmp_path / "away" / "sock", lambda: check("n1", None, NOW_S, 2)):
        pass
    assert file.read_text() == "mine"


def test_a_check_in_a_prolog_loads_no_learning(tmp_path: Path) -> None:
    code = f"import sys; sys.argv[1:] = ['nodes', 'check', 'n1', '--home', {str(tmp_path)!r}];"
    code += (
        " import atexit; atexit.register(lambda: print({'numpy', 'polars', 'sklearn', 'sqlalchemy'} & {*sys.modules}));"
    )
    code += " from provider_server.program.cli import app; app()"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "set()"

"""The pairwise test by a command for each pair: what fails, hangs, is slow or has link errors, and what is named."""

from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from pharoah_confirm.pair_verbs import CannotPair, run
from pharoah_confirm.pairwise import PairResult, PairwiseTest
from tenant_client.program.cli import app
from tests.support.schemas import held

NAMES = [f"n{number}" for number in range(1, 9)]
# Fails with n3, hangs with n5, and is slow between n1 and n2 (with errors of the link if told so).
SCRIPT = """#!/bin/sh
case " $1 $2 " in
    *" n3 "*) exit 1 ;;
    *" n5 "*) sleep 60 ;;
    " n1 n2 "|" n2 n1 ") echo "test done"; echo "3.5 $3" ;;
    *) echo 1.0 ;;
esac
"""


def script(folder: Path) -> str:
    file = folder / "pair.sh"
    file.write_text(SCRIPT)
    file.chmod(0o755)
    return str(file)


def test_bad_nodes_are_named_by_what_a_command_does(tmp_path: Path) -> None:
    test = PairwiseTest(range(8), Random(1), first=[(0, 1)])
    found = run(NAMES, [script(tmp_path), "{one}", "{other}", ""], test, timeout_s=1.0, at_once=4)
    assert {one.node for one in found.nodes} == {"n3", "n5"}
    assert [one.nodes for one in found.links] == [("n1", "n2")]
    assert (found.suspected, found.unknown) == ((), ())


def test_errors_of_a_link_speak_against_no_node() -> None:
    def world(*, told: bool) -> set[int]:
        test = PairwiseTest(range(6), Random(3), first=[(0, 1), (2, 3), (4, 5)])
        while pairs := test.next_round():  # all links of node 0 are bad
            test.report(PairResult(one, other, *((None, told) if one == 0 else (1.0, False))) for one, other in pairs)
        return {one.node for one in test.verdict().nodes}

    assert world(told=False) == {0}
    assert world(told=True) == set()


@pytest.mark.parametrize(
    ("names", "command", "says"),
    [
        (["n1"], ["a", "{one}", "{other}"], "two nodes"),
        (["n1", "n2"], ["a", "{one}"], "names both"),
        (["n1", "n2"], ["/nowhere/at/all", "{one}{other}"], "cannot be started"),
    ],
)
def test_what_cannot_be_run_says_why(names: list[str], command: list[str], says: str) -> None:
    with pytest.raises(CannotPair, match=says):
        run(names, command, PairwiseTest(range(len(names)), Random(1)), timeout_s=1.0, at_once=1)


def test_the_verb_takes_slurms_lists_and_a_command(tmp_path: Path) -> None:
    words = ["confirm", "pairs", "--timeout-s", "1", "--json", "n[1-8]", script(tmp_path), "{one}", "{other}"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1, result.output
    assert {one["node"] for one in held("pharoah-tenant confirm pairs", result.stdout)["nodes"]} == {"n3", "n5"}
    calm = CliRunner().invoke(app, ["confirm", "pairs", "n[6-8],n4", "--", script(tmp_path), "{one}", "{other}"])
    assert calm.exit_code == 0, calm.output
    assert "all nodes are well" in calm.stdout

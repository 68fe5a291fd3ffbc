"""Whether a spike came from data or from hardware: by hand, and of real jobs of two ranks with a fault put in."""

import math
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tenant_client.doctor.run.hook.readings import Log, Reading, encode, file_name
from tenant_client.doctor.run.restart_point import attempts_in, restart_after, restart_point
from tenant_client.doctor.run.spike_origin import Attempt, Origin
from tenant_client.program.cli import app
from tests.jobs.wrapped import JOBS, run
from tests.support.gloo import tried_again_without_gloo
from tests.support.schemas import held

DATA, HARDWARE, UNTOLD = Origin


def losses(
    seed: float, spike: dict[int, float] | None = None, *, begin: int = 0, own: bool = True, saved: int | None = None
) -> list[Reading]:
    """A reading every ten steps from `begin` on, counted from there: 2 ± .02 by the batches of `seed`, or `spike`."""
    found = []
    for step in range(begin + 1, 602, 10):
        loss = (spike or {}).get(step, 2 + 0.02 * math.sin(seed + step))
        found.append(Reading(step - begin, float(step), loss, None, saved=False, is_own=own))
        if step == saved:
            found.append(Reading(step - 1, step - 0.5, None, None, saved=True))
    return found


def told(*ranks: list[Reading]) -> tuple[Origin, str]:
    found = restart_point(dict(enumerate(ranks)))
    assert found is not None
    return found.origin, found.why


SPIKE = dict.fromkeys(range(501, 531, 10), 40.0)


def test_replicas_that_saw_the_same_batch_agree_or_do_not() -> None:
    assert told(losses(0, SPIKE), losses(0, SPIKE))[0] is DATA
    whence, why = told(losses(0), losses(0, SPIKE))
    assert whence is HARDWARE
    assert why.startswith("hardware of rank 1: ")
    assert told(losses(0, SPIKE), losses(0, dict.fromkeys(SPIKE, 80.0)))[0] is HARDWARE
    assert told(losses(0, dict.fromkeys(SPIKE, math.nan)), losses(0, dict.fromkeys(SPIKE, math.inf)))[0] is DATA


def test_ranks_with_batches_of_their_own_tell_nothing() -> None:
    for ranks in ((losses(0, SPIKE), losses(1, SPIKE)), (losses(0), losses(1, SPIKE)), (losses(0, SPIKE),)):
        whence, why = told(*ranks)
        assert whence is UNTOLD
        assert "cannot be told" in why


def test_losses_that_may_be_averages_make_no_replicas() -> None:
    """A job that passes the mean over its ranks has equal losses whatever happens."""
    assert told(losses(0, SPIKE, own=False), losses(0, SPIKE, own=False))[0] is UNTOLD


def test_ranks_that_were_not_read_when_it_began_tell_nothing() -> None:
    """An infinite loss of one rank is a NaN of both after the next all-reduce."""
    later = dict.fromkeys(range(511, 602, 10), math.nan)
    odd = [one for one in losses(0, {501: math.inf} | later) if one.step != 501 or one.saved]
    assert told(losses(0, {501: math.inf} | later), odd)[0] is UNTOLD
    whence, why = told(losses(0, later), losses(0, {501: math.inf} | later))
    assert whence is HARDWARE
    assert why.startswith("hardware of rank 1: ")


def test_with_three_replicas_one_that_is_odd_is_named() -> None:
    whence, why = told(losses(0), losses(5), losses(0), losses(0, SPIKE))
    assert whence is HARDWARE
    assert "rank 3" in why


def test_a_replay_decides() -> None:
    """The first attempt saved at step 200; the second begins there and sees the same batches."""
    first: Attempt = {0: losses(0, SPIKE, saved=201), 1: losses(1, saved=201)}
    again, healthy = ({0: losses(0, spike, begin=200), 1: losses(1, begin=200)} for spike in (SPIKE, {}))
    found = restart_after([first, again])
    assert found is not None
    assert (found.origin, found.skip) == (DATA, (292, 321))
    found = restart_after([first, healthy])
    assert found is not None
    assert (found.origin, found.checkpoint) == (HARDWARE, 200)
    assert "no batch is to be skipped" in found.sentence
    other = {0: losses(7, begin=200), 1: losses(8, begin=200)}  # other batches: no replay
    assert restart_after([first, other]) is None


def test_a_restart_in_one_run_directory_is_another_attempt() -> None:
    before, after = losses(0, SPIKE, saved=201), losses(0, SPIKE, begin=200)
    attempts = attempts_in({0: before + after, 1: losses(1)})
    assert [sorted(one) for one in attempts] == [[0, 1], [0]]
    assert attempts[0][0] == before
    assert attempts[1][0] == after


def test_readings_keep_whether_a_loss_is_the_ranks_own(tmp_path: Path) -> None:
    both = [Reading(1, 1.0, 2.0, None, saved=False, is_own=True), Reading(2, 2.0, None, None, saved=True)]
    (tmp_path / file_name(0)).write_bytes(b"".join(map(encode, both)))
    from tenant_client.doctor.run.hook.readings import read

    assert read(tmp_path / file_name(0)) == both


def test_the_verb_reads_the_attempts_before(tmp_path: Path) -> None:
    for number, readings in enumerate((losses(0, SPIKE, saved=201), losses(0, SPIKE, begin=200)), start=1):
        folder = tmp_path / "runs" / f"lease-{number}"
        folder.mkdir(parents=True)
        for one in readings:
            Log(folder, 0).add(one)
    done = CliRunner().invoke(app, ["show", "--only", "restart", "lease", "--home", str(tmp_path), "--json"])
    view = held("pharoah-tenant show --only restart", done.stdout)
    assert (done.exit_code, view["origin"]) == (1, "data")


# ---- real jobs -------------------------------------------------------------------------------------------------------


def ran(home: Path, fault: str, data: str, begin: int = 0, steps: int = 275) -> None:
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(home, [*job, JOBS / "spiking.py", fault, data, begin, steps, 250])
    assert done.code == 0, done.stderr


def whence(home: Path) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["show", "--only", "restart", "--home", str(home), "--json"])
    view = held("pharoah-tenant show --only restart", done.stdout)
    return view["origin"], view["why"]


@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "wanted"), [("batch", "data"), ("bit", "hardware")])
@tried_again_without_gloo
def test_real_replicas_tell_a_bad_batch_from_a_flipped_bit(tmp_path: Path, fault: str, wanted: str) -> None:
    ran(tmp_path, fault, "same")
    found, why = whence(tmp_path)
    assert found == wanted, why
    assert fault == "batch" or "rank 1" in why


@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "again", "wanted"), [("batch", "batch", "data"), ("bit", "none", "hardware")])
@tried_again_without_gloo
def test_where_each_rank_has_its_own_batches_a_real_replay_tells(
    tmp_path: Path, fault: str, again: str, wanted: str
) -> None:
    ran(tmp_path, fault, "own")
    assert whence(tmp_path)[0] == ""
    ran(tmp_path, again, "own", begin=20)
    found, why = whence(tmp_path)
    assert found == wanted, why

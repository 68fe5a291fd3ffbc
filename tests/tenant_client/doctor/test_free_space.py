"""Which file system of a job is full, after a write failed."""

import os
from pathlib import Path

import pytest

from tenant_client.doctor.records.attempts import AttemptCause
from tenant_client.doctor.run.diagnose_attempt import Explained, with_space
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.free_space import full_among, paths_of

MIB = 1 << 20
SIZES = {"/": (900, 1000), "/data": (500, 1000), "/data/out": (0, 2), "/home": (0, 10)}


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def statvfs(path: str) -> os.statvfs_result:
        free, size = (mib * MIB // 4096 for mib in SIZES.get(path, (0, 0)))
        return os.statvfs_result((4096, 4096, size, free, free, 9, 9, 9, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    file = tmp_path / "mounts"
    file.write_text("".join(f"none {path} ext4 rw 0 0\n" for path in SIZES) + "proc /data/proc proc rw 0 0\n")
    return file


def test_a_full_file_system_below_the_paths_of_the_job_is_named_and_no_other(mounts: Path) -> None:
    assert full_among({"/data/run", "/data"}, mounts) == (True, "0 of 2 MiB are free on /data/out")
    assert full_among({"/data/run"}, mounts) == (False, "500 of 1000 MiB are free on /data")
    assert full_among({"/etc/x"}, mounts) == (False, "900 of 1000 MiB are free on /")


def test_files_may_be_used_up_before_bytes(mounts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 99999, 9999, 9999, 8, 0, 0, 0, 255)))
    assert full_among({"/etc"}, mounts) == (True, "no file of 8 is left on /")


def test_the_paths_of_a_process_are_where_it_works_and_what_its_command_names(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cwd").symlink_to("/scratch/run")
    (tmp_path / "7" / "cmdline").write_text("python\0train.py\0--out=/data/out\0--config\0../conf/a.toml\0--lr=3e-4\0")
    assert paths_of(7, tmp_path) == {"/scratch/run", "/data/out", "/scratch/conf/a.toml"}
    assert paths_of(8, tmp_path) == set()


def test_a_checkpoint_that_was_not_written_for_want_of_space_is_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    unwritten, other = (
        Explained(AttemptCause(reason, 0, sentence=f"{reason}: rank 0: a.log: iostream error"))
        for reason in ("checkpoint_write", "key_error")
    )
    ours = FailOpen(quiet=True)
    monkeypatch.setattr(
        "tenant_client.doctor.run.diagnose_attempt.full_among", lambda _: (True, "0 of 2 MiB are free on /d")
    )
    cause = with_space(unwritten, {"/d"}, ours).cause
    assert (cause.reason, cause.rank) == ("disk_full", 0)
    assert cause.sentence == "disk_full: rank 0: a.log: iostream error; 0 of 2 MiB are free on /d"
    assert with_space(other, {"/d"}, ours) == other
    monkeypatch.setattr(
        "tenant_client.doctor.run.diagnose_attempt.full_among", lambda _: (False, "9 of 9 MiB are free on /d")
    )
    cause = with_space(unwritten, {"/d"}, ours).cause
    assert cause.sentence == "checkpoint_write: rank 0: a.log: iostream error; 9 of 9 MiB are free on /d"

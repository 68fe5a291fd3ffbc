"""What an attempt was started with is journalled without secrets, and compared after a failure."""

import json
import os
import subprocess
import sys
import venv
from contextlib import closing
from pathlib import Path

import pytest

from tenant_client.advice.changes import changes
from tenant_client.advice.own_runs import Run
from tenant_client.records.database import open_database
from tenant_client.records.journal import Journal
from tenant_client.records.starts import Started, masked_variables, masked_words

KEY = b"k" * 32
PROGRAM = str(Path(sys.executable).parent / "pharoah-tenant")


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(("/usr/bin/env", "git", "-C", str(folder), *name, *words), check=True, capture_output=True)


def ran(home: Path, lease: str, *command: str, cwd: Path, **env: str) -> None:
    words = (PROGRAM, "run", "--home", str(home), "--lease", lease, "--quiet", "--", *command)
    subprocess.run(words, cwd=cwd, env={**os.environ, **env}, check=False, capture_output=True)


def starts(home: Path) -> dict[str, Started]:
    with closing(open_database(home / "tenant.db")) as connection:
        return Journal(connection).starts()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("train.py", "--lr", "3"), ("train.py", "--lr", "3")),
        (("train.py", "--wandb-key", "s3cret", "--lr=3"), ("train.py", "--wandb-key", None, "--lr=3")),
        (("train.py", "--api_token=s3cret"), ("train.py", None)),
        (("train.py", "s3://who:s3cret@bucket/x"), ("train.py", None)),
    ],
)
def test_no_secret_of_a_command_is_kept(words: tuple[str, ...], kept: tuple[str | None, ...]) -> None:
    masked = masked_words(words, KEY)
    assert "s3cret" not in " ".join(masked)
    assert [one for one, wanted in zip(masked, kept, strict=True) if wanted] == [one for one in kept if one]
    assert masked == masked_words(words, KEY)
    assert masked_words(words, b"o" * 32) == masked or None in kept


def test_no_secret_of_the_environment_is_kept_and_a_changed_one_shows() -> None:
    variables = {"HF_TOKEN": "hf_abc", "NCCL_DEBUG": "INFO", "DB": "postgres://u:pw@h/d", "AWS_SECRET_ACCESS_KEY": "x"}
    masked = masked_variables(variables, KEY)
    assert masked["NCCL_DEBUG"] == "INFO"
    assert not {"hf_abc", "postgres://u:pw@h/d", "x"} & set(masked.values())
    assert masked["HF_TOKEN"] != masked_variables({"HF_TOKEN": "hf_abd"}, KEY)["HF_TOKEN"]


def test_a_start_is_journalled_with_code_packages_and_environment(tmp_path: Path) -> None:
    code, home = tmp_path / "code", tmp_path / "home"
    code.mkdir()
    (code / "train.py").write_text("print('step')\n")
    git(code, "init", "-q")
    git(code, "add", ".")
    git(code, "commit", "-qm", "one")
    venv.create(tmp_path / "env", symlinks=True)
    site = next((tmp_path / "env").glob("lib/python3*/site-packages"))
    (site / "Some_Lib-1.5.dist-info").mkdir()
    python = str(tmp_path / "env" / "bin" / "python")
    ran(home, "worked", python, "train.py", "--lr", "3", cwd=code, NCCL_DEBUG="INFO", HF_TOKEN="hf_abc")
    (site / "Some_Lib-1.5.dist-info").rename(site / "Some_Lib-1.6.dist-info")
    (code / "train.py").write_text("raise KeyError('x')\n")
    ran(home, "failed", python, "train.py", "--lr", "4", cwd=code, NCCL_DEBUG="WARN", HF_TOKEN="hf_abd")

    found = starts(home)
    assert found["worked"].command == (python, "train.py", "--lr", "3")
    assert found["worked"].packages["some-lib"] == "1.5"
    assert (len(found["worked"].commit), found["worked"].dirty) == (40, {})
    assert list(found["failed"].dirty) == ["train.py"]
    assert b"hf_abc" not in (home / "tenant.db").read_bytes()

    shown = subprocess.run(
        (PROGRAM, "changes", "--home", str(home), "failed", "--json"), capture_output=True, check=False, text=True
    )
    told = {(one["kind"], one["text"]) for one in json.loads(shown.stdout)["changes"]}
    assert {
        ("code", "uncommitted: train.py"),
        ("command", "3 → 4"),
        ("package", "some-lib 1.5 → 1.6, newer"),
        ("environment", "NCCL_DEBUG: INFO → WARN"),
    } <= told
    assert any(text.startswith("HF_TOKEN: (") for _, text in told)
    assert {kind for kind, _ in told} == {"code", "command", "package", "environment"}


def test_equal_starts_have_no_changes() -> None:
    one = Started(command=("python", "a.py"), commit="c", packages={"x": "1"}, environment={"A": "1"}, hosts="n1")
    assert changes(Run("a", {}, None, one), Run("b", {}, None, one)) == ()

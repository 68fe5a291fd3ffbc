"""What an attempt was started with is journalled without secrets, and compared after a failure."""

import json
import os
import subprocess
import sys
import venv
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tenant_client.doctor.advice.changes import changes
from tenant_client.doctor.advice.own_runs import Run
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.masking import digest, masked_variables, masked_words
from tenant_client.doctor.records.starts import Started

SECRET = "--api-key=hf_abc"
MASK = partial(digest, key=b"k" * 32)
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
        (("train.py", "--header=Authorization: Bearer s3cret"), ("train.py", None)),
        (("train.py", "--tokenizer=gpt2"), ("train.py", "--tokenizer=gpt2")),
        (("train.py", "s3://who:s3cret@bucket/x"), ("train.py", None)),
    ],
)
def test_no_secret_of_a_command_is_kept(words: tuple[str, ...], kept: tuple[str | None, ...]) -> None:
    masked = masked_words(words, MASK)
    assert "s3cret" not in " ".join(masked)
    assert [one for one, wanted in zip(masked, kept, strict=True) if wanted] == [one for one in kept if one]
    assert masked == masked_words(words, MASK)
    assert masked_words(words, partial(digest, key=b"o" * 32)) == masked or None in kept


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "MYSQL_PWD", "SENTRY_DSN", "GITHUB_PAT", "SLURM_JWT"),
        *("SLACK_WEBHOOK", "AZURE_STORAGE_CONNECTION_STRING", "DB", "OUR_OWN", "TORCH_HUB_AUTH"),
    ],
)
def test_no_secret_of_the_environment_is_kept_and_a_changed_one_shows(name: str) -> None:
    one, other = (masked_variables({name: value}, MASK)[name] for value in ("s3cret-a", "s3cret-b"))
    assert "s3cret" not in one + other
    assert one != other


def test_settings_are_kept_as_they_are_unless_they_hold_a_login() -> None:
    variables = {"NCCL_DEBUG": "INFO", "RANK": "3", "PATH": "/bin", "NCCL_PLUGIN": "https://u:pw@host/x"}
    masked = masked_variables(variables, MASK)
    assert {name: masked[name] for name in ("NCCL_DEBUG", "RANK", "PATH")} == dict(list(variables.items())[:3])
    assert "pw" not in masked["NCCL_PLUGIN"]


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
    ran(
        home,
        "worked",
        python,
        "train.py",
        "--lr",
        "3",
        "--api-key=hf_abc",
        cwd=code,
        NCCL_DEBUG="INFO",
        HF_TOKEN="hf_abc",
    )
    (site / "Some_Lib-1.5.dist-info").rename(site / "Some_Lib-1.6.dist-info")
    (code / "train.py").write_text("raise KeyError('x')\n")
    ran(
        home,
        "failed",
        python,
        "train.py",
        "--lr",
        "4",
        "--api-key=hf_abc",
        cwd=code,
        NCCL_DEBUG="WARN",
        HF_TOKEN="hf_abd",
    )

    found = starts(home)
    assert found["worked"].command[:4] == (python, "train.py", "--lr", "3")
    assert found["worked"].packages["some-lib"] == "1.5"
    assert (len(found["worked"].commit), found["worked"].dirty) == (40, {})
    assert list(found["failed"].dirty) == ["train.py"]
    assert not [file for file in home.rglob("*") if file.is_file() and b"hf_abc" in file.read_bytes()]

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


def test_outside_git_the_commands_scripts_are_compared_and_other_code_is_said_not_to_be(tmp_path: Path) -> None:
    home, code = tmp_path / "home", tmp_path / "code"
    code.mkdir()
    script = code / "job.py"
    script.write_text("print('step')\n", encoding="utf-8")
    for lease in ("first", "same"):
        ran(home, lease, sys.executable, "job.py", cwd=code)
    script.write_text("raise KeyError('x')\n", encoding="utf-8")
    ran(home, "edited", sys.executable, "job.py", cwd=code)
    ran(home, "inline", sys.executable, "-c", "raise KeyError('x')", cwd=code)

    def told(lease: str) -> tuple[list[str], list[str]]:
        words = (PROGRAM, "show", lease, "--only", "changes", "--home", str(home), "--json")
        found = json.loads(subprocess.run(words, capture_output=True, check=False, text=True).stdout)
        code = [one["text"] for one in found["changes"] if one["kind"] == "code"]
        return code, [one for one in found["unknown"] if one.startswith("code")]

    assert told("same") == ([], ["code but job.py (not in git)"])
    assert told("edited") == (["job.py changed"], ["code but job.py (not in git)"])
    assert told("inline") == ([], ["code (not in git)"])

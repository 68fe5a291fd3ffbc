"""What shows that a job lived on, and what does not: steps in any format, records of loggers, good ends, attempts."""

import random
import re
import tomllib

import pytest

from tenant_client.doctor.diagnosis.diagnose import diagnose
from tenant_client.doctor.sources.job_log import read
from tenant_client.doctor.sources.survival import Steps, record
from tests.support.logs_of_our_own import LOGS, reader

TABLE = tomllib.loads((LOGS / "steps.toml").read_text(encoding="utf-8"))
ENDS = tomllib.loads((LOGS / "ends.toml").read_text(encoding="utf-8"))
FRAMES = ("Traceback (most recent call last):", '  File "job.py", line 10, in <module>', "    main()")
PLACE = re.compile(r"\{(?:i(?:\*([\d.]+))?|(x))\}")


def traceback(error: str) -> str:
    return "".join(f"{line}\n" for line in (*FRAMES, error))


def steps(first: int, end: int) -> str:
    return "".join(f"Epoch [{at}/90], Train Loss: {2 - at / 100:.3f}\n" for at in range(first, end))


def counted(template: str, first: int, end: int) -> str:
    """Lines of a template, with noise that is the same each time."""
    noise = random.Random(first)

    def line(at: int) -> str:
        return PLACE.sub(lambda x: f"{noise.uniform(0, 9) if x[2] else round(at * float(x[1] or 1), 4):.6g}", template)

    return "".join(f"{line(at)}\n" for at in range(first, end))


def said(text: str) -> str:
    found = diagnose(read(reader(text)))
    return found.reason if found.root is not None or found.symptom is None else f"symptom: {found.symptom.reason}"


@pytest.mark.parametrize("template", TABLE["steps"].values(), ids=TABLE["steps"])
def test_what_counts_on_in_any_format_shows_that_a_failure_was_survived(template: str) -> None:
    went_on = counted(template, 1, 31) + traceback("KeyError: 'caption'") + counted(template, 31, 51)
    assert said(went_on) == "unknown"
    assert said(went_on + traceback("TypeError: fit")) == "type_error"


@pytest.mark.parametrize("template", TABLE["no_steps"].values(), ids=TABLE["no_steps"])
def test_what_ends_waits_or_tries_again_counts_no_steps(template: str) -> None:
    before = "".join(f"iteration {at} loss 2.0\n" for at in range(20))
    assert said(before + traceback("KeyError: 'caption'") + counted(template, 1, 40)) == "key_error"


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_job_is_told_from_what_it_survived(name: str) -> None:
    text = re.sub(r"<steps (\d+) (\d+)>\n", lambda found: steps(int(found[1]), int(found[2])), ENDS[name]["text"])
    assert said(text) == ENDS[name]["reason"]


def test_many_ranks_that_print_one_step_and_noise_that_grows_by_chance_count_little() -> None:
    ranks, chance, noise = Steps(), Steps(), random.Random(4)
    for at in range(64):
        ranks.feed(f"[rank{at}]: epoch 3, iterations 40/100")
        chance.feed(f"accuracy {noise.random():.3f} of {noise.randrange(1000)} images")
    assert ranks.count <= 1
    assert chance.count < 5


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("DEBUG:fsspec:probing", "DEBUG"), ("2026-01-05 10:00:00,123 - data - WARNING - skipped", "WARNING"),
        ("2026-01-05 10:00:00.000 | WARNING  | m:f:12 - x", "WARNING"),
        ("[2026-01-05 10:00:00,000][m][INFO] - x", "INFO"),
        ("W0312 12:34:56.789012 1234 file.py:12] x", "WARNING"),
        ("[rank0]:W0312 12:34:56.789012 1 file.py:12] x", "WARNING"),
        ("2026-01-05T10:00:00Z [warning  ] event  key=1", "WARNING"), ("[10:00:00] WARNING  x   file.py:12", "WARNING"),
        ("(Worker pid=7, ip=10.0.0.3) INFO 03-02 08:04:40 [x.py:1] x", "INFO"), ("ts=1 level=error msg=x", "ERROR"),
        ("[W1103 04:00:01.1 socket.cpp:752] [c10d] x", None), ("Got an ERROR from the server", None),
        ("gpu-a:311:402 [2] misc/socket.cc:54 NCCL WARN x", None), ("KeyError: 'x'", None), ("step 1 loss 2", None),
    ],
)  # fmt: skip
def test_a_record_of_a_logger_is_known_by_its_level_whatever_the_format(text: str, level: str | None) -> None:
    found = record(text)
    assert (found and found.level.name) == level

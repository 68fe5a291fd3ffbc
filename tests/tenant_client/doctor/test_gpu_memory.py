"""What a rank wanted of its GPU: messages as people posted them, batches by hand, the hook's peaks, and the verb."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tenant_client.doctor.advice.gpu_memory import batch_of, request, requests, wanted
from tenant_client.doctor.diagnosis.excerpts import Excerpt, ToldLine
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.excerpts import Excerpts
from tenant_client.doctor.records.starts import Started, Starts
from tenant_client.doctor.records.usages import Usage, Usages
from tenant_client.doctor.run.hook.tally import GPU_EVERY_S, Spending
from tenant_client.program.cli import app
from tests.support import schemas

GIB, MIB = 1 << 30, 1 << 20
# As posted: public notebooks and issues, of PyTorch 1.5 to 2.9. Wanted, by hand: tried − free.
POSTED = [
    (
        "CUDA out of memory. Tried to allocate 256.00 MiB (GPU 0; 11.17 GiB total capacity; 9.70 GiB already "
        "allocated; 179.81 MiB free; 9.85 GiB reserved in total by PyTorch)",
        (256 - 179.81) * MIB,
        0.0,
        False,
    ),
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 4.00 GiB total capacity; 3.44 "
        "GiB already allocated; 0 bytes free; 3.46 GiB reserved in total by PyTorch) If reserved memory is >>"
        " allocated memory try",
        2.0 * MIB,
        0.0,
        True,
    ),
    (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 5.96 GiB. GPU 0 has a total capacty of 23.69"
        " GiB of which 5.25 GiB is free. Process 2006998 has 256.00 MiB memory in use. Including non-PyTorch "
        "memory, this process has 18.17 GiB memory in use. Of the allocated memory 17.88 GiB is allocated by "
        "PyTorch, and 0 bytes is reserved by PyTorch but unallocated.",
        (5.96 - 5.25) * GIB,
        (23.69 - 5.25 - 18.17) * GIB,
        False,
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.68 GiB. GPU 0 has a total capacity "
        "of 23.68 GiB of which 11.88 GiB is free. Including non-PyTorch memory, this process has 11.79 GiB "
        "memory in use. Of the allocated memory 11.44 GiB is allocated by PyTorch, and 43.59 MiB is reserved "
        "by PyTorch but unallocated.",
        (19.68 - 11.88) * GIB,
        0.01 * GIB,
        False,
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity"
        " of 47.53 GiB of which 16.88 MiB is free. Process 3652628 has 47.51 GiB memory in use. Of the "
        "allocated memory 47.14 GiB is allocated by PyTorch, and 57.79 MiB is reserved by PyTorch but "
        "unallocated.",
        (256 - 16.88) * MIB,
        0.0,
        False,
    ),
]


@pytest.mark.parametrize(("text", "more", "others", "fragmented"), POSTED)
def test_what_was_wanted_is_what_was_tried_less_what_was_free(
    text: str,
    more: float,
    others: float,
    fragmented: bool,  # noqa: FBT001
) -> None:
    (told,) = requests(["Traceback (most recent call last):", text])
    found = wanted(told, batch=8)
    assert found is not None
    assert found.more_bytes == pytest.approx(more)
    assert found.others_bytes == pytest.approx(others, abs=0.02 * GIB)
    assert found.batch_at_most is not None
    assert 0 < found.batch_at_most < 8
    assert found.fragmented is fragmented


def test_a_message_that_names_no_gpu_wants_nothing_that_is_known() -> None:
    """As in a log that was cut, and of a size that no GPU has."""
    assert (
        requests(["CUDA out of memory. Tried to allocate 2.00 GiB.", "Tried to allocate more than 1EB memory."]) == []
    )
    assert request("Killed") is None


def full(tried: float, allocated: float, capacity: float = 80.0, unallocated: float = 0.0) -> Any:
    free = capacity - allocated - unallocated
    return request(
        f"Tried to allocate {tried:.2f} GiB. GPU 0 has a total capacity of {capacity:.2f} GiB of which {free:.2f} GiB"
        f" is free. Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, and {unallocated:.2f} GiB is"
        " reserved by PyTorch but unallocated."
    )


def test_a_batch_fits_by_an_earlier_run_with_another_one() -> None:
    """The model takes 40 GiB, and 3 GiB for each of a batch: of 16, 88; 13 fit into 80 GiB."""
    told = full(tried=10.0, allocated=78.0)
    with_other = wanted(told, 16, [(8, (40 + 3 * 8) * GIB)])
    alone = wanted(told, 16)
    assert with_other is not None
    assert alone is not None
    assert (with_other.batch_at_most, alone.batch_at_most) == (13, 14)  # without it the fixed part counts as nothing
    too_large = wanted(full(tried=50.0, allocated=78.0, capacity=80.0), 2, [(1, 85.0 * GIB)])
    assert too_large is not None
    assert too_large.batch_at_most == 0
    assert "no batch fits" in too_large.sentence


def test_memory_in_pieces_is_called_so() -> None:
    found = wanted(full(tried=4.0, allocated=70.0, unallocated=9.0), 16)
    assert found is not None
    assert found.fragmented
    assert "expandable_segments" in found.sentence


@pytest.mark.parametrize(
    ("command", "batch"),
    [
        ("train.py --batch-size 32", 32),
        ("torchrun train.py --per_device_train_batch_size=4 --per_device_eval_batch_size=64", 4),
        ("pretrain_gpt.py --micro-batch-size 2 --global-batch-size 512", 2),
        ("train.py data.train_batch_size=128 trainer.eval_batch_size=7", 128),
        ("train.py --train_micro_batch_size_per_gpu 6", 6),
        ("train.py -bs 3", 3),
        ("train.py --steps 32 --batch-sampler 4", None),
        ("train.py --batch-size", None),
    ],
)
def test_the_batch_is_that_of_the_command(command: str, batch: int | None) -> None:
    assert batch_of(command.split()) == batch


def test_the_peak_is_read_now_and_then_and_never_without_a_gpu() -> None:
    calls: list[str] = []

    def peak() -> int:
        calls.append("peak")
        return 7 * GIB

    cuda = SimpleNamespace(
        is_initialized=lambda: False,
        current_device=lambda: 0,
        get_device_properties=lambda _: SimpleNamespace(total_memory=80 * GIB),
        max_memory_allocated=peak,
    )
    spending = Spending(0.0)
    spending.look_at_gpu(None, 0.0)
    spending.look_at_gpu(SimpleNamespace(cuda=cuda), 1.0)
    assert calls == []
    cuda.is_initialized = lambda: True
    for now_s in (2.0, 3.0, 2.0 + GPU_EVERY_S, 3.0 + GPU_EVERY_S):
        spending.look_at_gpu(SimpleNamespace(cuda=cuda), now_s)
    assert (spending.tally.gpu_bytes, spending.tally.gpu_limit_bytes, len(calls)) == (7.0 * GIB, 80.0 * GIB, 1)
    spending.move("failed", 14.0)
    spending.look_at_gpu(SimpleNamespace(cuda=cuda), 14.0)
    assert len(calls) == 2


def test_the_verb_says_how_much_more_or_which_batch(tmp_path: Path) -> None:
    lease = "0a" * 16
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        attempts.begin(lease, 1e9)
        attempts.end(lease, 1, AttemptState.FAILED, 1e9 + 60.0)
        attempts.explain(lease, 1, AttemptCause("gpu_out_of_memory"))
        Starts(connection).keep(lease, 1, Started(command=("python", "train.py", "--batch-size", "8")))
        Excerpts(connection).keep(lease, 1, Excerpt("", (ToldLine("err.log", 7, POSTED[3][0]),)))
    done = CliRunner().invoke(app, ["show", "0a", "--only", "resources", "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1].startswith("this worker wants at least 8.38 GB more GPU memory, or batch 6 at")
    done = CliRunner().invoke(app, ["show", "0a", "--only", "resources", "--home", str(tmp_path), "--json"])
    assert schemas.held("pharoah-tenant show --only resources", done.stdout)["gpu"]["batch_at_most"] == 6


def test_peaks_of_gpus_are_kept_beside_what_the_host_gave(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        usages = Usages(connection)
        with_gpu, without = Usage(1, 1.0, 2.0, 3, 4.0, 5.0, 6.0, 7.0), Usage(1, 1.0, 2.0, 3, 4.0, 5.0)
        usages.keep("a", 1, with_gpu)
        usages.keep("a", 2, without)
        assert usages.all() == {("a", 1): with_gpu, ("a", 2): without}

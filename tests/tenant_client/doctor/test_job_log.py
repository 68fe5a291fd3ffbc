"""A job's output: tracebacks of every make, what counts as a failure, and what does not."""

import pytest
from hypothesis import example, given, strategies as st

from federation.base.reading import CappedReader, ReadLimits, SourceError
from federation.protocol.causes import Domain
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.job_log import Leftover, read
from tenant_client.doctor.sources.reasons import REASONS
from tenant_client.doctor.sources.tracebacks import Tracebacks
from tests.support.logs_of_our_own import reader

HEAD = "Traceback (most recent call last):\n"
FRAME = '  File "train.py", line 3, in main\n    go()\n'
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


def raised(text: str) -> str:
    return f"{HEAD}{FRAME}{text}\n"


def roots(content: str | bytes) -> list[Evidence]:
    return [seen for seen in read(reader(content)) if seen.role is Role.ROOT]


def reasons(content: str) -> list[str]:
    return [seen.reason for seen in roots(content)]


def labelled(label: str, content: str) -> str:
    return "".join(f"{label}{line}\n" for line in content.splitlines())


def test_a_traceback_names_its_exception_with_the_line_where_it_stands() -> None:
    (seen,) = roots("step 1\n" + raised("KeyError: 'x'"))
    assert (seen.reason, seen.line, seen.text, seen.source) == ("key_error", 5, "KeyError: 'x'", "job_log")


@pytest.mark.parametrize(
    ("label", "rank", "host"),
    [
        ("[rank3]: ", 3, ""), ("[rank12]:", 12, ""), ("5: ", 5, ""), ("node01: ", None, "node01"),
        ("worker-1: ", None, "worker-1"), ("[default4]:", 4, ""), ("[1,6]<stderr>:", 6, ""),
        ("(Worker pid=7, ip=10.0.0.3) ", None, "10.0.0.3"), ("2025-11-03 04:00:00,123 ", None, ""),
    ],
)  # fmt: skip
def test_labels_of_lines_tell_rank_and_host(label: str, rank: int | None, host: str) -> None:
    (seen,) = roots(labelled(label, raised("TypeError: no")))
    assert (seen.reason, seen.rank, seen.host) == ("type_error", rank, host)


@pytest.mark.parametrize(
    "where", ["DataLoader worker process 4", "pin memory thread for device 0", "replica 1 on device 1"]
)
def test_the_original_of_what_was_raised_again_is_read_in_its_place(where: str) -> None:
    again = f"OSError: Caught OSError in {where}.\nOriginal {raised('OSError: [Errno 116] Stale file handle')}"
    (seen,) = roots(labelled("[rank6]: ", raised(again)))
    assert (seen.reason, seen.rank, seen.line) == ("os_error", 6, 4)
    assert seen.text == "OSError: [Errno 116] Stale file handle"


@pytest.mark.parametrize("word", ["upd  ", "update ", "batch ", "step="])
def test_steps_in_other_words_show_that_a_failure_was_survived(word: str) -> None:
    def went_on(steps: int) -> list[str]:
        return reasons(
            raised("ValueError: bad sample") + "".join(f"rank 0 | {word}{at} | ctc 26.6\n" for at in range(steps))
        )

    assert went_on(4) == ["value_error"]
    assert went_on(5) == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("socketPollConnect: connect to 10.0.0.1<5> returned Connection timed out (110), exceeded", "transport_error"),
        ("socketProgressOpt: Call to recv from 10.0.0.1<5> failed : Connection timed out", "transport_error"),
        ("socketProgressOpt: Call to recv from 10.0.0.1<5> failed : Connection reset by peer", "peer_lost"),
        ("socketProgress: Connection closed by remote peer n1<5>", "peer_lost"),
    ],
)
def test_a_socket_that_times_out_is_the_transport_s_and_one_that_is_closed_a_peer_s(said: str, reason: str) -> None:
    error = "torch.distributed.DistBackendError: NCCL error in: a.cpp:7, remote process exited, NCCL version 2.21.5"
    log = raised(f"{error}\nncclRemoteError: A call failed possibly due to a network error.\nLast error:\n{said}")
    assert next(seen.reason for seen in read(reader(log)) if seen.role is Role.SYMPTOM) == reason


def test_interleaved_ranks_keep_their_own_tracebacks() -> None:
    one = labelled("[rank0]: ", raised("KeyError: 'x'")).splitlines()
    two = labelled("[rank1]: ", raised("IndexError: list index out of range")).splitlines()
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    assert [(seen.reason, seen.rank) for seen in roots(mixed)] == [("key_error", 0), ("index_error", 1)]


def test_two_ranks_without_labels_that_write_at_once_are_both_read() -> None:
    mixed = HEAD + HEAD + FRAME + FRAME + "KeyError: 'x'\nValueError: y\n"
    assert reasons(mixed) == ["key_error", "value_error"]


def test_a_time_in_front_of_each_line_dates_the_evidence() -> None:
    lines = raised("OSError: [Errno 5] Input/output error").splitlines()
    dated = "\n".join(f"2025-11-03T04:00:0{n}.5Z {line}" for n, line in enumerate(lines))
    (seen,) = roots(dated)
    assert (seen.reason, seen.at_s) == ("os_error", 1762142403.5)


@pytest.mark.parametrize(
    ("first", "link", "last", "reason"),
    [
        ("FileNotFoundError: a", HANDLING, "RuntimeError: closed", "file_not_found_error"),
        ("KeyError: 'a'", HANDLING, "FileNotFoundError: a", "file_not_found_error"),
        ("ModuleNotFoundError: a", HANDLING, "ImportError: b", "import_error"),
        ("KeyError: 'a'", CAUSE, "RuntimeError: wrapped", "key_error"),
        ("ValueError: a", CAUSE, "datasets.exceptions.DatasetGenerationError: b", "dataset_loading_error"),
        ("RuntimeError: a", HANDLING, "RuntimeError: CUDA error: unspecified launch failure", "cuda_error"),
        ("TypeError: a", HANDLING, "KeyboardInterrupt", "type_error"),
    ],
)
def test_of_a_chain_one_exception_speaks(first: str, link: str, last: str, reason: str) -> None:
    assert reasons(raised(first) + link + raised(last)) == [reason]


def test_an_exception_ignored_in_a_finaliser_is_none() -> None:
    assert reasons("Exception ignored in: <function X.__del__ at 0x7f>\n" + raised("AttributeError: a")) == []


def test_a_syntax_error_needs_no_header() -> None:
    assert reasons('  File "train.py", line 3\n    a = = 1\n        ^\nSyntaxError: invalid syntax\n') == [
        "syntax_error"
    ]


def test_carriage_returns_of_a_progress_bar_hide_nothing() -> None:
    (seen,) = roots("start\n\r 10%|█ | 1/10 [00:01<00:09]\r 20%|██| 2/10 [00:02<00:08]" + raised("ValueError: x"))
    assert (seen.reason, seen.line) == ("value_error", 5)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: see the manual", "--on-error  what to do after a RuntimeError: skip", "errors: 0 error rate 0.1",
        "pytest.raises(KeyError: 'x')", "retry after CUDA out of memory, with half the batch",
        "[W socket.cpp:752] [c10d] The client socket has failed to connect to [a]:29500 (errno: 111).",
        "WARNING: retrying after ConnectionError(ProtocolError('Connection aborted.'))",
        "DataLoader worker processes: 8, killed: 0", "SBATCH --requeue on NODE_FAIL or PREEMPTED",
        "raise RuntimeError('CUDA error')", "export NCCL_DEBUG=WARN", "NCCL WARN NET/Plugin : Failed to find symbol",
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 12020).",
        "UserWarning: CUDA initialization: Unexpected error. Error 802: system not yet initialized",
        "NVIDIA H100 with CUDA capability sm_90 is not compatible with the current PyTorch installation.",
        "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
        "[W socket.cpp:697] The client socket has failed to connect to [localhost]:29500 (errno: 111 - refused).",
        "Watching for a spot interruption notice; a checkpoint is written when it is received",
        "spot-watch: polling for an interruption notice: terminate at the first one",
        "DeepEP: timeout set to 100 s", "No silent data corruption detected in 12 passes",
        ">>> Weight hashes match after 1000 iterations...", "WARNING: gradient is not finite, skipping this step",
        "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        "INFO: http://127.0.0.1:8080/health: Connection refused, attempt 1 of 30",
    ],
)  # fmt: skip
def test_words_alone_are_no_failure(text: str) -> None:
    assert [seen for seen in read(reader(f"{text}\nbye\nbye\nbye\nbye\n")) if seen.role is not Role.TEARDOWN] == []


def test_a_warning_is_the_root_where_a_later_failure_is_what_it_warned_of() -> None:
    old = (
        "x.py:9: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 12020).\n"
    )
    (seen,) = roots(old + raised("RuntimeError: No CUDA GPUs are available"))[:1]
    assert (seen.reason, seen.line, seen.domain) == ("driver_mismatch", 1, Domain.FRAMEWORK)
    arch = "NVIDIA H100 with CUDA capability sm_90 is not compatible with the current PyTorch installation.\n"
    image = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    (seen,) = roots(arch + raised(image))
    assert (seen.reason, seen.line) == ("runtime_error", 1)
    assert [one.line for one in roots(arch + raised("KeyError: 'x'"))] == [5]


def test_a_failure_that_the_job_survived_is_forgotten_and_one_that_ended_it_is_not() -> None:
    def on(steps: int) -> str:
        return raised("ConnectionError: x") + "".join(f"iteration {n} loss 2.0\n" for n in range(steps))

    assert reasons(on(4)) == ["connection_error"]
    assert reasons(on(5)) == []
    assert reasons(on(5) + raised("KeyError: 'x'")) == ["key_error"]
    repeated = raised("ConnectionError: x") + "iteration 7 loss 2.0\n" * 50
    assert reasons(repeated) == ["connection_error"], "many ranks print one step; that is not going on"


def test_what_follows_an_order_to_stop_is_teardown() -> None:
    stop = "slurmstepd: error: *** STEP 1.0 ON a CANCELLED AT 2025-11-03T05:00:00 DUE TO TIME LIMIT ***\n"
    assert reasons(stop + raised("ConnectionError: x")) == ["time_limit"]
    assert reasons(raised("ConnectionError: x") + stop) == ["connection_error", "time_limit"]
    plain = stop.replace(" DUE TO TIME LIMIT", "")
    assert reasons(plain + raised("KeyError: 'late, but its own'")) == ["cancelled", "key_error"]
    node = stop.replace("TIME LIMIT", "NODE FAILURE")
    assert reasons(stop + node) == ["time_limit", "node_failure"]


def test_the_last_error_below_an_exception_is_read_too() -> None:
    below = (
        "Last error:\nNET/IB : Got completion from peer 10.1.0.8<4031> with status=12 opcode=1 len=0 vendor err 129\n"
    )
    text = raised("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited") + below
    seen = [(one.reason, one.role) for one in read(reader(text))]
    assert seen == [("transport_error", Role.SYMPTOM)] * 2, "a completion error says more than that a peer is gone"


def test_an_exception_that_no_cue_knows_is_a_root_without_a_reason() -> None:
    left = Leftover()
    (seen,) = read(reader(raised("my.errors.Exhausted: stage 4")), leftover=left)
    assert (seen.reason, seen.role) == ("unknown", Role.ROOT)
    assert [line.text for line in left.suspicious] == ["my.errors.Exhausted: stage 4"]


def test_what_no_cue_explains_is_left_over_with_its_line_and_the_last_lines() -> None:
    left = Leftover()
    assert list(read(reader("a\nlink error on pump 7\nb\nlast\n"), leftover=left)) == []
    assert [(line.number, line.text) for line in left.suspicious] == [(2, "link error on pump 7")]
    assert left.tail[-1].text == "last"


def test_a_million_evidences_are_not_kept() -> None:
    content = "".join(labelled(f"[rank{rank}]: ", raised("KeyError: 'x'")) for rank in range(1500))
    assert len(list(read(reader(content)))) == 1024


ATOMS = st.sampled_from(
    [
        HEAD, FRAME, HANDLING, CAUSE, "KeyError: 'x'\n", "[rank1]: ", "\r", "\n", "Exception ignored in: x\n", "\0",
        "é",
        "NVRM: Xid (PCI:0000:3b:00): 74\n", "a:1:2 [0] NCCL WARN Got completion with error 12\n", " CANCELLED AT x",
        "2025-13-45T99:99:99+99:99 ", "[Feb 99 2025 00:00:00] error\n", "iteration 1 loss\n", "x" * 5000,
    ]
)  # fmt: skip


@given(st.one_of(st.binary(max_size=2000), st.lists(ATOMS, max_size=40).map(lambda parts: "".join(parts).encode())))
@example(b"\xff" * 100 + b"Traceback (most recent call last)")
@example(b"9999-12-31T23:59:59-23:59 Xid (PCI:0000:3b:00): 999999")
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    for seen in read(reader(data)):
        assert 1 <= seen.line <= data.count(b"\n") + 1


class Broken:
    def read(self, size: int, /) -> bytes:
        raise OSError("stale file handle")


def test_a_file_that_breaks_while_it_is_read_is_a_fault_of_that_file() -> None:
    with pytest.raises(SourceError, match=r"b\.log, byte 0: .*stale"):
        list(read(CappedReader(Broken(), "b.log", 10)))


def test_the_cap_holds() -> None:
    with pytest.raises(SourceError, match="more than 10 bytes"):
        list(read(CappedReader(reader(b"x" * 11), "b.log", 10), ReadLimits(total_bytes=10)))


def test_an_unfinished_traceback_is_given_up_after_a_while() -> None:
    tracebacks = Tracebacks()
    assert tracebacks.feed(1, HEAD.strip())
    for number in range(2, 70):
        tracebacks.feed(number, "something else")
    assert not tracebacks.open
    assert tracebacks.finished() == []


def test_a_stack_dumped_by_faulthandler_opens_no_traceback() -> None:
    dump = 'Current thread 0x7f01 (most recent call first):\n  File "train.py", line 3 in step\n'
    assert reasons(f"{dump}KeyError: see the manual\n" + "bye\n" * 4) == []


# ---- without a traceback ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: ", "(RayTrainWorker pid=71, ip=10.0.0.1) "])
def test_an_exception_without_its_traceback_counts_only_as_the_logs_last_words(prefix: str) -> None:
    last = f"{prefix}KeyError: 'input_ids'\n"
    (seen,) = read(reader("starting\n" * 3 + last))
    assert (seen.reason, seen.line, seen.text) == ("key_error", 4, "KeyError: 'input_ids'")
    assert list(read(reader(last + "goes on\n" * 4))) == []
    assert list(read(reader(last + "iteration 7 loss 2.0\n"))) == []


def test_a_full_disk_is_named_at_either_end_of_a_chain() -> None:
    full, library = "OSError: [Errno 28] No space left on device", "RuntimeError: PytorchStreamWriter failed writing"
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    for first, then in ((full, library), (library, full)):
        assert reasons(raised(first) + link + raised(then)) == ["disk_full"]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("tokenizer: vocabulary is empty", ["runtime_error"]),
        ("[enforce fail at pair.cc:456] Received data size doesn't match expected size", ["runtime_error"]),
        ("std::bad_alloc", ["bad_alloc"]),
        ("[enforce fail at pair.cc:553] Connection closed by peer [10.0.0.7]:6817", []),
        ("[Rank 1] Some NCCL operations have failed", []),
        ("write: Broken pipe", []),
        ("Socket Timeout", []),
    ],
)
def test_a_cpp_exception_speaks_by_its_what_unless_of_another_rank(what: str, reason: list[str]) -> None:
    assert reasons(f"terminate called after throwing an instance of 'std::exception'\n  what():  {what}\n") == reason


@pytest.mark.parametrize("loss", ["nan", "inf"])
def test_a_loss_that_is_no_number_ends_a_job(loss: str) -> None:
    assert reasons(f"step 3\nLoss is {loss}, stopping training\n") == ["nan_loss"]
    assert reasons(raised(f"FloatingPointError: loss is {loss} at step 5")) == ["nan_loss"]


def test_a_loss_that_the_trainer_skips_ends_nothing() -> None:
    assert reasons("step 3\nloss is inf, skipping the step\n") == []


# ---- torchrun's verdict ----------------------------------------------------------------------------------------------

VERDICT = """============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-03-02_04:05:07
  host      : gpu-b
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 48212)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-02_04:05:06
  host      : gpu-a
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 48213)
  error_file: <N/A>
"""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-9, "killed"),
        (-1, "killed"),
        (-11, "segmentation_fault"),
        (-7, "shared_memory_full"),
        (17, "exit_code"),
    ],
)
def test_the_first_observed_failure_is_read_with_rank_and_host(code: int, reason: str) -> None:
    (seen,) = read(reader(VERDICT.format(code=code)))
    assert (seen.reason, seen.rank, seen.host, seen.role) == (reason, 1, "gpu-a", Role.ROOT)


def test_an_abort_is_named_after_all_that_may_have_caused_it() -> None:
    (seen,) = read(reader(VERDICT.format(code=-6)))
    assert (seen.reason, seen.rank, seen.role) == ("aborted", 1, Role.SYMPTOM)
    assert "assertion" in REASONS[seen.reason].advice


@pytest.mark.parametrize("code", [1, -15])
def test_an_exit_code_of_many_failures_names_the_rank_alone(code: int) -> None:
    (seen,) = read(reader(VERDICT.format(code=code)))
    assert (seen.reason, seen.rank, seen.role) == ("unknown", 1, Role.TEARDOWN)


def test_the_code_that_a_traceback_shows_is_no_last_word() -> None:
    log = b"""[rank0]: Traceback (most recent call last):
[rank0]:   File "/a/train.py", line 130, in main
[rank0]:     assert not torch.isnan(loss), f"loss is NaN at step {step}"
[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:61577.
"""
    assert {seen.reason for seen in read(reader(log.decode()))} == {"peer_lost"}


def test_another_rank_on_this_machine_is_no_server_of_the_job() -> None:
    peer = "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:29102: Connection reset by peer"
    (seen,) = read(reader(f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n{peer}\n'))
    assert (seen.reason, seen.role) == ("peer_lost", Role.SYMPTOM)

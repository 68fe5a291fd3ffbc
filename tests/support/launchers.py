"""Lines of launchers as they were recorded: torchrun's of PyTorch 2.13.0, torchft's of 0.2.0 by our handler."""

import json


def torchrun(
    state: str, *, restarts: int = 0, rank: int | None = 0, size: int = 8, source: str = "WORKER", exit_code: int = 1
) -> str:
    """An event as `torchrun --event-log-handler console` writes it."""
    worker = {"local_rank": [rank], "role_rank": [rank], "role_world_size": [size]}
    ended = {"exit_code": [exit_code if state == "FAILED" else None], "worker_pid": [None]}
    metadata = {
        "run_id": "2e7b5066-9b6b-4f2f-8221-281dfeb6371d",
        "global_rank": rank,
        "group_rank": 0,
        "worker_id": "27918",
        "role": "default",
        "hostname": "gpu-7",
        "state": state,
        "total_run_time": 0,
        "rdzv_backend": "c10d",
        "raw_error": None,
        "metadata": json.dumps({"group_world_size": 1, "entry_point": "python", **worker, **ended}),
        "agent_restarts": restarts,
        "duration_ms": None,
    }
    name = f"torchelastic.worker.status.{state}"
    return json.dumps({"name": name, "source": source, "timestamp": 0, "metadata": metadata})


def started(restarts: int, size: int) -> str:
    """The start of a worker."""
    return torchrun("START", restarts=restarts, size=size)


TORCHFT = [
    '{"torchft": "torchft_quorums", "at_s": 1.5, "replica_id": "a", "rank": 0, "quorum_id": 2, "step": 5}',
    '{"torchft": "torchft_commits", "at_s": 2.5, "replica_id": "a", "rank": 0, "quorum_id": 2, "step": 5,'
    ' "commit_result": false}',
    '{"torchft": "torchft_errors", "at_s": 3.5, "replica_id": "a", "rank": 0, "error": "process_group_abort"}',
]

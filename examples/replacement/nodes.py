"""Three nodes and a standby on one machine: an agent of torchrun for each, and the store where they meet.

    python nodes.py FOLDER STEPS

- `--nnodes=2:3` lets the job go on with two nodes if no spare comes within 20 s (`last_call_timeout`).
- The store is in this process, beside the agents, so any node may be lost.
- The standby has torch loaded and joins when `join` is in the folder. It is no fourth agent from the start: torch keeps
  one in a redundancy list, and once that agent is in the waiting list instead, every start of all ranks is the last
  one's end (torch 2.13, seen here after a late heartbeat).

Process ids of the agents are in `agents.json`. Ends as the first agent that ends by itself.
"""

import json
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore, run as torchrun

NODES, SPARE, STANDBY = ("node-a", "node-b", "node-c"), "node-d", "standby"
CONF = "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=4,last_call_timeout=20"
JOB = Path(__file__).with_name("train.py")


def options(port: int, folder: Path, steps: str) -> list[str]:
    """What torchrun is told on each node."""
    elastic = ["--nnodes=2:3", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.5"]
    meeting = ["--rdzv-id=81", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={CONF}"]
    return [*elastic, *meeting, "--local-addr=127.0.0.1", "--event-log-handler=console", str(JOB), str(folder), steps]


def start(name: str, program: list[str]) -> subprocess.Popen[bytes]:
    """Starts the agent of a node.

    With torch 2.13's shared store, an agent that joins a later round waits for an address that nobody writes again.
    """
    own = os.environ | {"NODE": name, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen([sys.executable, *program], env=own)


def stand_by(port: int, folder: Path, steps: str) -> None:
    """Waits until it may join, and is an agent then."""
    while not (folder / "join").exists():
        time.sleep(0.1)
    torchrun.main(options(port, folder, steps))


def main() -> int:
    """Starts the nodes and the standby; how the job ended."""
    if sys.argv[1] == STANDBY:
        stand_by(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
        return 0
    folder, steps = Path(sys.argv[1]), sys.argv[2]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
    agents = {name: start(name, ["-m", "torch.distributed.run", *options(port, folder, steps)]) for name in NODES}
    standby = start(SPARE, [__file__, STANDBY, str(port), str(folder), steps])
    pids = {name: one.pid for name, one in agents.items()}
    (folder / "agents.json").write_text(json.dumps(pids), encoding="utf-8")
    while all(one.poll() is None or one.returncode < 0 for one in agents.values()):
        time.sleep(0.1)
    code = max(one.returncode for one in agents.values() if one.returncode is not None)
    if (folder / "join").exists():
        standby.wait()
    standby.kill()
    del store
    return code


if __name__ == "__main__":
    sys.exit(main())

"""A real Slurm for tests: munge, MariaDB, slurmdbd, slurmctld and a slurmd for each node, all on this host, gone after.

Nothing needs an account of its own: everything runs as who runs the tests, below a directory with a short name, since a
Unix socket's is short. Debian's slurmd is built for several nodes on one host, which have a port each (`slurmd -N`).
Without these programs tests are skipped, and say which packages add them.
"""

import getpass
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from simulation.run.processes import free_ports
from tests import needs
from tests.support.waiting import until

CLUSTER, HOST = "alps", "127.0.0.1"
STOP_S = 20.0
EXPIRE_S = 30  # of credentials; a job that is requeued waits as long
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
SLURMDBD = """AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdPort={dbd}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm
PidFile={folder}/slurmdbd.pid
"""
SLURM = """ClusterName={cluster}
SlurmctldHost={name}({host})
SlurmctldPort={ctld}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={expire}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd}
AccountingStoragePass={folder}/munge/socket
MpiDefault=none
ReturnToService=1
SchedulerParameters=sched_interval=1,sched_min_interval=0
{more}
PartitionName=main Nodes={nodes} Default=YES MaxTime=60 State=UP
"""
NODE = "NodeName={node} NodeHostname={name} NodeAddr={host} Port={port} CPUs=2 State=UNKNOWN"


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Commands are run in `environment`."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, *command: str, **more: str) -> str:
        """What a command of Slurm prints; an error fails the test, with what it said."""
        done = subprocess.run(
            command, env={**self.environment, **more}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, *arguments: str, **more: str) -> int:
        """The id of a job that `sbatch` took."""
        return int(self.run("sbatch", "--parsable", *arguments, **more).partition(";")[0])

    def state(self, job: int) -> str:
        """The state of a job that has not ended long ago."""
        return self.run("squeue", "-h", "--states=all", "-o", "%T", f"--jobs={job}")

    def ended(self, jobs: Sequence[int]) -> dict[int, str]:
        """Waits until these jobs have ended; their last states, by what accounting says."""

        def states() -> dict[int, str] | None:
            asked = ["sacct", "-X", "-n", "-P", "--format=JobIDRaw,State", f"--jobs={','.join(map(str, jobs))}"]
            pairs = (line.split("|") for line in self.run(*asked).splitlines())
            found = {int(job): state.split()[0] for job, state in pairs}
            return found if len(found) == len(jobs) and set(found.values()) <= ENDED else None

        return until(states, f"jobs {jobs} end")


@contextmanager
def cluster(nodes: Sequence[str], *, accounts: Sequence[str] = (), more: str = "") -> Iterator[Cluster]:
    """A cluster of these nodes, until the context ends; `more` are further lines of slurm.conf."""
    for program in ("slurmctld", "slurmd", "slurmdbd", "sbatch", "munged", "mariadbd"):
        needs.program(program)
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        free_ports(HOST, 2 + len(nodes)) as (dbd, ctld, *ports),
        ExitStack() as stack,
    ):
        made = Cluster(Path(folder), _environment(Path(folder)))
        made.folder.chmod(0o755)  # munge wants every account to reach its socket
        _configure(made.folder, dbd, ctld, dict(zip(nodes, ports, strict=True)), more)
        _munge(made, stack)
        _mariadb(made, stack)
        _start(made, stack, "slurmdbd", "-D")
        until(lambda: _succeeds(made, "sacctmgr", "-n", "list", "cluster"), "slurmdbd answers")
        made.run("sacctmgr", "-i", "add", "cluster", CLUSTER)
        for account in accounts:
            made.run("sacctmgr", "-i", "add", "account", account)
            made.run("sacctmgr", "-i", "add", "user", getpass.getuser(), f"account={account}")
        _start(made, stack, "slurmctld", "-D")
        for node in nodes:
            _start(made, stack, "slurmd", "-D", "-N", node)
        idle = ["sinfo", "-h", "-N", "--states=idle", "-o", "%N"]
        until(lambda: _succeeds(made, *idle) and set(made.run(*idle).split()) == set(nodes), "nodes are idle")
        yield made


def rest_answer(made: Cluster, path: str) -> bytes:
    """What a slurmrestd of the cluster answers for a path, at a Unix socket of whom it runs as."""
    needs.program("slurmrestd")
    at = made.folder / "rest"
    own = Cluster(made.folder, {**made.environment, "SLURMRESTD_SECURITY": "disable_user_check"})  # tests may be root's
    with ExitStack() as stack:
        _start(own, stack, "slurmrestd", "-s", "openapi/dbv0.0.38", "-a", "rest_auth/local", f"unix:{at}")
        until(at.exists, "slurmrestd listens")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(at)), base_url="http://slurm") as client:
            return client.get(path).raise_for_status().content


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
    own = {"SLURM_CONF": f"{folder}/slurm.conf", "MYSQL_UNIX_PORT": f"{folder}/mariadb.socket", "TZ": "UTC"}
    return {**os.environ, **own, "PATH": path}


def _configure(folder: Path, dbd: int, ctld: int, ports: Mapping[str, int], more: str) -> None:
    for name in ("munge", "state", "spool", "database", *(f"spool/{node}" for node in ports)):
        (folder / name).mkdir()
    name, user = socket.gethostname().partition(".")[0], getpass.getuser()
    lines = [NODE.format(node=node, name=name, host=HOST, port=port) for node, port in ports.items()]
    told = {
        "folder": folder,
        "user": user,
        "dbd": dbd,
        "ctld": ctld,
        "name": name,
        "host": HOST,
        "cluster": CLUSTER,
        "expire": EXPIRE_S,
    }
    (folder / "slurm.conf").write_text(SLURM.format(**told, nodes=",".join(ports), more="\n".join([*lines, more])))
    (folder / "slurmdbd.conf").write_text(SLURMDBD.format(**told))
    (folder / "slurmdbd.conf").chmod(0o600)


def _munge(made: Cluster, stack: ExitStack) -> None:
    folder = made.folder / "munge"
    (folder / "key").write_bytes(secrets.token_bytes(1024))
    (folder / "key").chmod(0o400)
    files = [f"--{kind}-file={folder}/{kind}" for kind in ("key", "pid", "log", "seed")]
    _start(made, stack, "munged", "--foreground", f"--socket={folder}/socket", *files)
    until((folder / "socket").exists, "munge listens")


def _mariadb(made: Cluster, stack: ExitStack) -> None:
    data, at, user = made.folder / "database", made.folder / "mariadb.socket", getpass.getuser()
    common = ["--no-defaults", f"--datadir={data}", f"--user={user}"]
    made.run("mariadb-install-db", *common, "--auth-root-authentication-method=socket", "--skip-test-db",
             f"--auth-root-socket-user={user}")  # fmt: skip
    small = ["--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0", "--skip-networking"]
    _start(made, stack, "mariadbd", *common, *small, f"--socket={at}", f"--pid-file={made.folder}/mariadb.pid")
    until(lambda: _succeeds(made, "mariadb", "--no-defaults", f"--socket={at}", "-e", "CREATE DATABASE slurm"), "SQL")


def _start(made: Cluster, stack: ExitStack, *command: str) -> None:
    """Starts a program, which is ended with the stack; its log lies in the folder."""
    log = stack.enter_context((made.folder / f"{command[0]}.log").open("ab"))
    stack.enter_context(_running(command, made.environment, log.fileno()))


@contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str], log: int) -> Iterator[None]:
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _succeeds(made: Cluster, *command: str) -> bool:
    done = subprocess.run(command, env=made.environment, capture_output=True, timeout=60, check=False)
    return done.returncode == 0

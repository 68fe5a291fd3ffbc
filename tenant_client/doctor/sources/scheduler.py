"""Which job this is and where it runs, out of the environment that Slurm, Kubernetes or torchrun set.

What a scheduler says about failures (NODE FAILURE, preemption) stands in the job's log: `job_log` reads it.

    >>> where = placement({"SLURM_JOB_ID": "81", "SLURM_PROCID": "3", "SLURM_JOB_NODELIST": "gpu[01-03,7]"})
    >>> where.job_id, where.rank, where.nodes
    ('81', 3, ('gpu01', 'gpu02', 'gpu03', 'gpu7'))
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from federation.base.foreign import number
from federation.base.hostlist import hostlist
from federation.protocol.pod_leases import Gang


@dataclass(frozen=True)
class Placement:
    """One process of one job. None or "" where the environment does not tell; `restarts` counts from 0.

    `ends_at_s` is when the time limit ends the job, in seconds since 1970.
    """

    scheduler: str = ""
    job_id: str = ""
    array_job_id: str = ""
    array_task: int | None = None
    node: str = ""
    nodes: tuple[str, ...] = ()
    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    node_count: int | None = None
    restarts: int = 0
    restarts_maximum: int | None = None
    partition: str = ""
    account: str = ""
    namespace: str = ""
    pod: str = ""
    gpus: tuple[str, ...] = ()
    ends_at_s: int | None = None

    @property
    def only_node(self) -> str:
        """The node of a job that has one. The job's list names it even where this process runs on a login node."""
        if self.node_count != 1:
            return ""
        return self.nodes[0] if len(self.nodes) == 1 else self.node


# In order of precedence: torchrun knows a process better than the scheduler that started its launcher.
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_NODE_RANK = ("GROUP_RANK", "PET_NODE_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX", "NODE_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_NODE_COUNT = ("GROUP_WORLD_SIZE", "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_JOB = ("SLURM_JOB_ID", "JOB_NAME", "TORCHELASTIC_RUN_ID", "PET_RDZV_ID")
_NODE = ("SLURMD_NODENAME", "NODE_NAME", "HOSTNAME")
_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def placement(environment: Mapping[str, str]) -> Placement:
    """Read an environment; values that are no numbers where numbers belong count as absent."""
    nodes = tuple(hostlist(environment.get("SLURM_JOB_NODELIST", "")))
    scheduler = _scheduler(environment)
    return Placement(
        scheduler=scheduler,
        job_id=_text(environment, _JOB, but="none"),  # so torchrun names a job that nobody named
        array_job_id=environment.get("SLURM_ARRAY_JOB_ID", ""),
        array_task=_number(environment, ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")),
        node=_text(environment, _NODE),
        nodes=nodes,
        rank=_number(environment, _RANK),
        local_rank=_number(environment, _LOCAL_RANK),
        node_rank=_number(environment, _NODE_RANK),
        world_size=_number(environment, _WORLD),
        local_world_size=_number(environment, _LOCAL_WORLD),
        node_count=_number(environment, _NODE_COUNT) or len(nodes) or None,
        restarts=_restarts(environment),
        restarts_maximum=_number(environment, ("TORCHELASTIC_MAX_RESTARTS", "PET_MAX_RESTARTS")),
        partition=environment.get("SLURM_JOB_PARTITION", ""),
        account=environment.get("SLURM_JOB_ACCOUNT", ""),
        namespace=environment.get("POD_NAMESPACE", ""),
        pod=_text(environment, ("POD_NAME", "HOSTNAME")) if scheduler == "kubernetes" else "",
        gpus=_gpus(environment),
        ends_at_s=_number(environment, ("SLURM_JOB_END_TIME",)),
    )


def gang_of(environment: Mapping[str, str]) -> Gang | None:
    """The pods that work together with this one, by what the downward API told it; None outside of a pod.

    `JOBSET_UID` and `JOBSET_RESTART`, `JOB_UID` and `POD_UID` come from the pod's metadata (docs/clusters.md);
    `JOB_COMPLETION_INDEX` is set by Kubernetes itself, in pods of indexed Jobs.
    """
    if jobset := environment.get("JOBSET_UID"):
        return Gang("jobset", jobset, _number(environment, ("JOBSET_RESTART",)) or 0)
    if (job := environment.get("JOB_UID")) and environment.get("JOB_COMPLETION_INDEX"):
        return Gang("job", job)
    pod = environment.get("POD_UID")
    return Gang("pod", pod) if pod else None


def _scheduler(environment: Mapping[str, str]) -> str:
    if environment.get("SLURM_JOB_ID"):
        return "slurm"
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in environment or "POD_NAME" in environment else ""


def _restarts(environment: Mapping[str, str]) -> int:
    """Of the scheduler and of the launcher within it: either may start the processes again."""
    names = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
    return sum(_number(environment, (name,)) or 0 for name in names)


def _gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    text = _text(environment, _GPUS)
    return () if text in {"void", "none", "NoDevFiles"} else tuple(gpu for gpu in text.split(",") if gpu)


def _text(environment: Mapping[str, str], names: Sequence[str], *, but: str = "") -> str:
    return next((environment[name] for name in names if environment.get(name, "") not in ("", but)), "")


def _number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    values = (environment.get(name, "") for name in names)
    return next((found for value in values if (found := number(value)) is not None), None)

"""What is obvious: a list of regular expressions, as anybody would write it; the first that the log contains names it.

Drain3 finds templates and names no cause, so there is nothing of it to score here.
"""

import re
from pathlib import Path

from simulation.studies.diagnosis.answers import Answer
from tenant_client.sources.reasons import UNKNOWN

PATTERNS = (
    (r"CUDA out of memory", "gpu_out_of_memory"),
    (r"Out of memory: Killed process|oom-kill", "host_out_of_memory"),
    (r"MemoryError|can't allocate memory|bad_alloc", "out_of_memory_error"),
    (r"DataLoader worker .* (killed|exited)", "dataloader_killed"),
    (r"No space left on device", "disk_full"),
    (r"NVLink", "nvlink_error"),
    (r"ECC", "ecc_error"),
    (r"device-side assert", "device_side_assert"),
    (r"CUDA error", "cuda_error"),
    (r"[Ss]egmentation fault|SIGSEGV", "segmentation_fault"),
    (r"NCCL.*timeout|Timed out waiting", "nccl_timeout_error"),
    (r"NCCL error|Connection closed by peer", "nccl_remote_error"),
    (r"Connection (refused|reset|timed out)", "connection_error"),
    (r"(?i)loss.*\bnan\b|\bnan\b.*loss", "nan_loss"),
    (r"ModuleNotFoundError|ImportError", "import_error"),
    (r"FileNotFoundError|No such file or directory", "file_not_found_error"),
    (r"PermissionError|Permission denied", "permission_error"),
    (r"error: unrecognized arguments", "argument_error"),
    (r"ZeroDivisionError", "zero_division_error"),
    (r"AssertionError", "assertion_error"),
    (r"KeyError", "key_error"),
    (r"TypeError", "type_error"),
    (r"ValueError", "value_error"),
    (r"IndexError", "index_error"),
    (r"AttributeError", "attribute_error"),
    (r"SIGKILL|Killed", "killed"),
    (r"RuntimeError", "runtime_error"),
)
_COMPILED = tuple((re.compile(pattern), reason) for pattern, reason in PATTERNS)
_RANK = re.compile(r"rank *:? *(\d+)")


def regex(log: Path) -> Answer:
    """The first pattern's reason, and the first rank that the log names."""
    text = log.read_text(encoding="utf-8", errors="replace")
    rank = _RANK.search(text)
    reason = next((reason for pattern, reason in _COMPILED if pattern.search(text)), UNKNOWN)
    return Answer(reason, int(rank[1]) if rank else None)

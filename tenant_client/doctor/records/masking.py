"""Takes what looks like a secret out of command lines and environments before they are written or shown.

>>> masked_words(("train.py", "--api-key", "s3cret", "--lr=3"))
('train.py', '--api-key', '…', '--lr=3')
"""

import hmac
import re
from collections.abc import Callable, Iterable, Mapping

_SETTINGS = re.compile(
    r"(?:NCCL|RCCL|GLOO|UCX|FI|OMPI|PMI|MPI|CUDA|CUBLAS|CUDNN|NVIDIA|HIP|HSA|ROCR|MIOPEN|HCCL|ASCEND|HABANA|NEURON|XLA|TPU"
    r"|JAX|TF|TORCH\w*|PYTORCH|PYTHON\w*|TRITON|DS|DEEPSPEED|ACCELERATE|OMP|MKL|OPENBLAS|NUMEXPR|KMP|MALLOC|SLURM|PBS|LSB"
    r"|LC|CONDA|VIRTUAL|LD|MASTER|LOCAL|GROUP|ROLE|TOKENIZERS|TRANSFORMERS)_\w+"
    r"|RANK|WORLD_SIZE|PATH|HOME|USER|LOGNAME|SHELL|LANG|TERM|TMPDIR|TZ|HOSTNAME"
)
_SECRET = re.compile(
    r"(?i)key|token(?!izer)|secret|passw|pwd|credential|auth|bearer|cookie|jwt|webhook|dsn|_pat(?![a-z])"
)
_LOGIN = re.compile(r"://[^/\s]*@|(?i:bearer |authorization|accountkey=|signature=|[?&]sig=)")
_DIGEST = 12
_MOST_LETTERS = 400


def masked_words(words: Iterable[str], mask: Callable[[str], str] = lambda _: "…") -> tuple[str, ...]:
    """A command line with another text for what looks like a secret."""
    masked: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        option = masked[-1] if masked and masked[-1].startswith("-") and "=" not in masked[-1] else ""
        if equals and _SECRET.search(name):
            masked.append(f"{name}={mask(value)}")
        elif _SECRET.search(option) or _LOGIN.search(word):
            masked.append(mask(word))
        else:
            masked.append(word[:_MOST_LETTERS])
    return tuple(masked)


def masked_variables(environment: Mapping[str, str], mask: Callable[[str], str]) -> dict[str, str]:
    """Variables with another text for all but known settings, and for what is long or looks like a secret."""

    def shown(name: str, value: str) -> bool:
        told = _SECRET.search(name) or _LOGIN.search(value) or len(value) > _MOST_LETTERS
        return _SETTINGS.fullmatch(name) is not None and not told

    return {name: value if shown(name, value) else mask(value) for name, value in environment.items()}


def digest(value: str, key: bytes) -> str:
    """A short text that tells equal values from others, and nothing else to who has no key."""
    return f"({hmac.digest(key, value.encode('utf-8', 'surrogateescape'), 'sha256').hex()[:_DIGEST]})"

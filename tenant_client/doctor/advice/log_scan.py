"""Reads the logs of a failed job for what is known of its software: versions, GPUs, and lines of known failures.

Both are found by gates of words, as evidence is. Versions are looked for in a file's first megabytes, where programs
say them; known failures in all of it. What cannot be read of a file is left out: the diagnosis has said so.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, SourceError, is_text, open_inputs
from tenant_client.doctor.advice.incompatibilities import Known, in_logs, job_of, words
from tenant_client.doctor.diagnosis.diagnose import files_in
from tenant_client.doctor.sources import software
from tenant_client.doctor.sources.scanning import Gate, Line, Scanner, gate_of
from tenant_client.doctor.workload.descriptor import Descriptor

_HEAD = 16 << 10
_VERSIONS_UP_TO = 4 << 20
_MOST_LINES = 20_000  # of a file: banners and failures are few, and a loop's are all alike


def known_in(paths: Iterable[Path], reason: str, descriptor: Descriptor | None = None) -> tuple[Known, ...]:
    """What is known of the job that wrote these logs, which failed for `reason`; `descriptor` tells its workload."""
    paths = list(paths)
    return in_logs(job_of(software_in(paths), descriptor), _lines(paths, words(), DEFAULT_LIMITS), reason)


def software_in(paths: Iterable[Path], limits: ReadLimits = DEFAULT_LIMITS) -> software.Software:
    """The versions and GPUs that these files name."""
    return software.software_of(line.text for _, line in _lines(paths, software.words(), limits, _VERSIONS_UP_TO))


def _lines(
    paths: Iterable[Path], words: tuple[str, ...], limits: ReadLimits, up_to: int | None = None
) -> Iterator[tuple[str, Line]]:
    """File and line of each line with a word, in the first `up_to` bytes of each file that is text."""
    for file in (file for path in paths for file, _ in files_in(path)):
        with suppress(SourceError, OSError), open_inputs(file, limits) as inputs:
            for reader in (reader for reader in inputs if is_text(reader.peek()[:_HEAD])):
                name = reader.file
                if up_to is not None:
                    reader = CappedReader(io.BytesIO(reader.read(up_to)), name, up_to)
                hits = iter(Scanner(reader, _gate(words), limits).hit, None)
                yield from ((name, line) for line in islice(hits, _MOST_LINES))


@cache
def _gate(of: tuple[str, ...]) -> Gate:
    return gate_of(of)

"""The fuzz targets: one for each decoder of foreign bytes, in the order of the imports below."""

from fuzz.targets import wire, flower, passes, traces, logs, files, cluster  # isort: skip
from fuzz.targets.target import TARGETS, Broken, Target, require

__all__ = ["TARGETS", "Broken", "Target", "cluster", "files", "flower", "logs", "passes", "require", "traces", "wire"]

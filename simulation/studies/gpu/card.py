"""Which card this is, what it runs with, and what its maker publishes of it (`cards.toml`)."""

import csv
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from simulation.studies.gpu.notes import Notes, Skipped

LEAST = 0.7
LANE_GBS = {"3": 0.985, "4": 1.969, "5": 3.938, "6": 7.563}  # one lane, one way, by generation of PCIe


def describe(notes: Notes) -> None:
    """What was tried with what."""
    import torch

    notes.figures(python=platform.python_version(), torch=torch.__version__, host=platform.platform())
    notes.figures(cores=os.cpu_count(), triton=find_spec("triton") is not None, device="cpu", card="none")
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        notes.figures(device="cuda:0", card=about.name, cards=torch.cuda.device_count())
        notes.figures(memory_gib=about.total_memory >> 30, capability=f"{about.major}.{about.minor}")
        notes.figures(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(), nccl=torch.cuda.nccl.version())
    ones = torch.ones(64, 64, device="cuda:0" if torch.cuda.is_available() else "cpu")
    product = (ones @ ones).sum().item()
    notes.check("it computes", product, good=product == 64.0**3)
    try:
        notes.figures(**asked("driver_version", "clocks.max.sm", "power.limit", "ecc.mode.current", "mig.mode.current"))
    except Skipped as why:
        notes.figures(nvidia_smi=str(why))


def asked(*fields: str) -> dict[str, str]:
    """What nvidia-smi says of the first card, by the heading that it gives; Skipped where it says nothing."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Skipped(f"nvidia-smi does not run: {error}") from error
    lines = said.stdout.strip().splitlines()
    if said.returncode or len(lines) < 2:
        raise Skipped(f"nvidia-smi ended with {said.returncode}: {(said.stdout + said.stderr).strip()[:300]}")
    heads, values = csv.reader(lines[:2], skipinitialspace=True)
    return dict(zip(heads, values, strict=True))


def published(name: str) -> dict[str, Any] | None:
    """The row of `cards.toml` for a card, None if nobody has entered it."""
    rows = tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))["card"]
    return next((row for row in rows if re.search(row["name"], name)), None)


def slot_gbs(said: Mapping[str, str]) -> float | None:
    """The rate of the slot, one way, by its generation and lanes as nvidia-smi says them; None where it does not."""
    lane, width = LANE_GBS.get(said.get("pcie.link.gen.max", "")), said.get("pcie.link.width.max", "")
    return lane * int(width) if lane and width.isdecimal() else None


def shares(rates: Mapping[str, float], row: Mapping[str, Any], slot: float | None) -> dict[str, tuple[float, float]]:
    """Of each rate (bf16 in TFLOP/s, memory and link in GB/s) the share of what is published, and the least of it."""
    theory = {**row, "link": min(row["link"], slot or row["link"])}
    return {what: (rate / theory[what], row.get("least", {}).get(what, LEAST)) for what, rate in rates.items()}

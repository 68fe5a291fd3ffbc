"""`make images`: builds the image of each role by ops/Containerfile, looks at what is in it, and starts it.

It needs root, `buildah`, and a network for what is installed. Each image runs as its own user on a read-only root, with
a home and /tmp to write: the commands of `TRIED`, and then three trustees, a provider and four tenants hold a round.
Arguments are for `buildah build`.
A row for each role; the exit status is 1 if something is wrong. out/images/ has CycloneDX lists of all that is inside.
"""

import errno
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from federation.base.screen import say, show
from provider_server.program.operations.admin import HeldRound
from simulation.run import processes

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "images"
OWNER = "1000:1000"
# Each role's package, and what its program is asked in a home of its own.
TRIED: dict[str, tuple[str, list[str]]] = {
    "provider": ("provider_server", ["--version", "kubernetes --help", "leases slurm --help"]),
    "tenant": ("tenant_client", ["--version", "diagnose /var/lib/pharoah/job.log", "confirm --help"]),
    "trustee": ("trustee", ["--version", "init --address localhost:7100", "status"]),
}
LOG = "[rank3]:[E1] [PG 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
# As a runtime does it: root read-only, /tmp in memory, the home a volume. The folder $2 is there too, at its own name.
INSIDE = """
given=$PATH PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount --bind -o ro "$1" "$1" && mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/tmp" && mkdir "$1$2" && mount --bind "$2" "$1$2" && mount --bind "$2/home" "$1/var/lib/pharoah"
root=$1 chroot=$(command -v chroot) PATH=$given
shift 2
exec "$chroot" --userspec=1000:1000 "$root" "$@"
"""
LOOK = """
import importlib.metadata, json, os, platform
try:
    open("/opt/written", "w")
    refused = ""
except OSError as error:
    refused = error.strerror
packages = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
owner = f"{os.getuid()}:{os.getgid()}"
print(json.dumps({"owner": owner, "refused": refused, "python": platform.python_version(), "packages": packages}))
"""


@dataclass(frozen=True)
class Image:
    """One that was built: where its files are, and how its program is started."""

    role: str
    root: Path
    environment: list[str]
    entrypoint: list[str]

    def inside(self, room: Path, *command: str) -> list[str]:
        """The command line that runs a command in it."""
        mounted = [program("unshare"), "--mount", "/bin/sh", "-euc", INSIDE, "sh", str(self.root), str(room)]
        return [program("env"), "-i", *self.environment, *mounted, *command]


def main() -> int:
    """The exit status."""
    if shutil.which("buildah") is None or os.getuid() != 0:
        say("images: nothing was built: this needs root, and buildah, which Debian's package of that name adds")
        return 0
    OUT.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        images = [built(role, stack) for role in TRIED]
        show(
            "| image | size | of Python, of Debian | programs | runs as | a write outside its home | |",
            "|---" * 7 + "|",
        )
        fine = [looked_at(image) for image in images]
        held = hold(images, stack.enter_context(room()))
    show(f"A round over all three: {held['contributors']} contributions, {held['seconds']:.1f} s.")
    return int(not all(fine))


def built(role: str, stack: ExitStack) -> Image:
    """Builds an image, and mounts it for as long as `stack` is open."""
    say(f"images: {role}")
    name = f"localhost/pharoah-{role}"
    what = ["--target", role, "--tag", name, "--file", "ops/Containerfile", "."]
    command = [program("buildah"), "build", "--isolation", "chroot", "--layers", *sys.argv[1:], *what]
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)
    container = buildah("from", name)
    stack.callback(buildah, "rm", container)
    config = json.loads(buildah("inspect", "--type", "image", name))["OCIv1"]["config"]
    return Image(role, Path(buildah("mount", container)), config["Env"], config["Entrypoint"])


def looked_at(image: Image) -> bool:
    """Whether an image has what it should and no more, and its program runs; prints its row, writes its list."""
    with room() as folder:
        python = image.inside(folder, "/opt/pharoah/bin/python", "-c", LOOK)
        told = json.loads(subprocess.run(python, check=True, stdout=subprocess.PIPE).stdout)
        wrong = tried(image, folder)
    found, debian = programs(image.root), debian_packages(image.root)
    if [one.name for one in found] != [f"python{told['python'].rpartition('.')[0]}"]:
        wrong.append("it has other programs than Python")
    if told["owner"] != OWNER or told["refused"] != os.strerror(errno.EROFS):
        wrong.append("it may write outside its home")
    wrong += listed(image.role, told, debian)
    size_mb = sum(one.lstat().st_size for one in image.root.rglob("*")) / 1e6
    names, packages = " ".join(one.name for one in found), f"{len(told['packages'])}, {len(debian)}"
    columns = (
        image.role,
        f"{size_mb:.0f} MB",
        packages,
        names,
        told["owner"],
        told["refused"],
        "; ".join(wrong) or "ok",
    )
    show("| " + " | ".join(columns) + " |")
    return not wrong


def tried(image: Image, folder: Path) -> list[str]:
    """The commands that did not end well, and what they said last."""
    failed = []
    for words in TRIED[image.role][1]:
        command = image.inside(folder, *image.entrypoint, *words.split())
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            failed.append(f"{words}: {(done.stderr.strip() or done.stdout.strip() or 'nothing').splitlines()[-1]}")
    return failed


def programs(root: Path) -> list[Path]:
    """Whatever can be run without Python, or is set to run as somebody else."""
    found = []
    for one in root.rglob("*"):
        mode = one.lstat().st_mode
        if stat.S_ISREG(mode) and mode & (0o111 | stat.S_ISUID | stat.S_ISGID):
            with one.open("rb") as content:
                line = content.readline(200)
            runs = ".so" not in one.name if line.startswith(b"\x7fELF") else line[:2] == b"#!" and b"python" not in line
            if runs or mode & (stat.S_ISUID | stat.S_ISGID):
                found.append(one.relative_to(root))
    return sorted(found)


def debian_packages(root: Path) -> dict[str, str]:
    """Versions by name, as ops/image.sh notes them."""
    notes = [file.read_text() for file in root.glob("var/lib/dpkg/status.d/*")]
    fields = [dict(re.findall(r"^(Package|Version): (.+)$", note, re.MULTILINE)) for note in notes]
    return {one["Package"]: one["Version"] for one in fields}


def listed(role: str, told: dict[str, Any], debian: dict[str, str]) -> list[str]:
    """Adds Python and Debian's packages to the image's list of `make dist`; what speaks against that list."""
    files = list((ROOT / "dist").glob(f"image-{role}-*.cdx.json"))
    if not files:
        return ["no list in dist/: `make dist`"]
    document = json.loads(files[0].read_text(encoding="utf-8"))
    there = {one["name"]: one["version"] for one in document["components"]}
    more = [("python", told["python"], f"pkg:generic/python@{told['python']}")]
    more += [(name, version, f"pkg:deb/debian/{name}@{quote(version)}") for name, version in sorted(debian.items())]
    document["components"] += [
        {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        for name, version, purl in more
    ]
    (OUT / files[0].name).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    differ = sorted(f"{name} {version}" for name, version in there.items() ^ told["packages"].items())
    return [f"dist/{files[0].name} differs in {', '.join(differ)}"] if differ else []


def hold(images: list[Image], folder: Path) -> HeldRound:
    """A round of programs that run in the images; what is written from outside is given to them before each starts."""
    cases = [
        f'{TRIED[image.role][0]}) exec {shlex.join(image.inside(folder, "/opt/pharoah/bin/python"))} "$@" ;;'
        for image in images
    ]
    python = folder / "python"
    python.write_text("\n".join(["#!/bin/sh", f"chown -R {OWNER} {folder}", 'case "$2" in', *cases, "esac", ""]))
    python.chmod(0o700)
    sys.executable = str(python)  # as `processes` starts all programs
    return processes.hold(processes.Places(folder / "home", tenants=4, trustees=3), say)


@contextmanager
def room() -> Iterator[Path]:
    """A folder below /tmp, where an image sees it too, with a home and a log in it that are the image's user's."""
    with tempfile.TemporaryDirectory(prefix="pharoah-images-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "home").mkdir(mode=0o700)
        (folder / "home" / "job.log").write_text(LOG)
        subprocess.run([program("chown"), "-R", OWNER, name], check=True)
        yield folder


def program(name: str) -> str:
    """Where it is."""
    return shutil.which(name) or name


def buildah(*words: str) -> str:
    """What it prints."""
    return subprocess.run([program("buildah"), *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

"""`make dist`: all that a release uploads, made of what is committed, into dist/. It stops before the upload.

Every distribution is built twice, in two folders under two time zones and file modes, as an sdist and as a wheel of
that sdist; the bytes must be equal. `twine check` and `check-wheel-contents` look at them. Each is installed beside
the locked versions of what it needs, and `cyclonedx-py` lists what is there. A statement of provenance (in-toto
Statement v1 with SLSA Provenance v1) names the commit and the digest of every file. It is signed as DSSE in a bundle
of Sigstore 0.3, with a key of one's own instead of a certificate, and `securesystemslib` verifies it; docs/release.md
says how a stranger does.
"""

import argparse
import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
GIT = shutil.which("git") or "git"
BUNDLE, KEY, SUMS = "provenance.sigstore.json", "release.pub", "SHA256SUMS"
STATEMENT = "application/vnd.in-toto+json"
# What ops/Containerfile installs for each role.
IMAGES = {
    role: parts.split()
    for role, parts in re.findall(r"RUN ops/image\.sh (\w+) (.+)", (ROOT / "ops/Containerfile").read_text())
}
LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./\.\./)?([^):]+)\)")  # to a file of the repository


@dataclass(frozen=True)
class Source:
    """What is built: a commit, its time in seconds since 1970, and the address under which its files can be read."""

    commit: str
    time_s: int
    url: str | None


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--uv", type=Path, required=True, help="the program uv")
    parser.add_argument(
        "--key", type=Path, help="EC P-256 private key as PEM; without, one is made in out/, for trying"
    )
    parser.add_argument("--url", help="address of the files of this version, for the metadata")
    asked = parser.parse_args()
    commit, time_s = _git("log", "-1", "--format=%H %ct").split()
    source = Source(commit, int(time_s), asked.url)
    if _git("status", "--porcelain"):
        say("what is not committed is not built")
    with tempfile.TemporaryDirectory(prefix="pharoah-dist-") as folder:
        room = Path(folder)
        first, second = (build(room / name, source, mask, zone) for name, mask, zone in BUILDS)
        same(first, second)
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(first, DIST)
        check()
        for name, wanted in shipped().items():
            listed = sbom(room / name, asked.uv.absolute(), name, wanted)
            (DIST / f"{name}-{version()}.cdx.json").write_text(listed, encoding="utf-8")
    for file in gpu_report(source):
        shutil.copyfile(file, DIST / f"gpu-{file.name}")
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(DIST.iterdir()))
    (DIST / SUMS).write_text(sums, encoding="utf-8")
    sign(json.dumps(statement(source), sort_keys=True).encode(), asked.key or _key_for_trying())
    verify()
    for path in sorted(DIST.iterdir()):
        sys.stdout.write(f"{path.stat().st_size:9,}  {path.name}\n")
    say(f"built from {commit}; nothing was uploaded: docs/release.md")
    if not source.url:
        say("without SOURCE_URL= the metadata has no addresses: not for an upload")
    return 0


BUILDS = (("one", 0o022, "UTC"), ("two", 0o077, "Pacific/Apia"))


def say(words: str) -> None:
    """One line for who waits."""
    sys.stderr.write(f"dist: {words}\n")


def version() -> str:
    """Of all distributions."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def members() -> list[Path]:
    """The folders of all distributions, below the root."""
    found = [
        path.parent for pattern in ("distributions", "plugins") for path in ROOT.glob(f"{pattern}/*/pyproject.toml")
    ]
    return [Path(), *sorted(path.relative_to(ROOT) for path in found)]


def shipped() -> dict[str, list[str]]:
    """What is listed: every distribution, and the image of each role, by what is installed for it."""
    alone = {_name(path): [_name(path)] for path in members()}
    return alone | {f"image-{role}": [f"pharoah-{part}" for part in parts] for role, parts in IMAGES.items()}


def build(room: Path, source: Source, mask: int, zone: str) -> Path:
    """The folder with the sdist of every distribution and the wheel of that sdist."""
    tree, made = room / "tree", room / "made"
    tree.mkdir(parents=True)
    archive = subprocess.run([GIT, "archive", source.commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tree, filter="tar")
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(source.time_s), "TZ": zone, "PYTHONHASHSEED": str(mask)}
    for member in members():
        say(f"{room.name}: {member.name or 'pharoah'}")
        alone = room / "alone" / member  # links become files, or the sdist would point out of itself
        shutil.copytree(tree / member, alone, dirs_exist_ok=True, ignore=shutil.ignore_patterns("tests"))
        _dress(alone, member, source.url)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(alone)]
        subprocess.run(command, check=True, env=environment, umask=mask, stdout=subprocess.DEVNULL)
    return made


def _dress(folder: Path, member: Path, url: str | None) -> None:
    """Addresses for the metadata; links of the README lead to them, or are none."""
    about = folder / ("distributions/README.md" if member == Path() else "README.md")
    target = rf"[\1]({url}/\2)" if url else r"\1"
    about.write_text(LINK.sub(target, about.read_text(encoding="utf-8")), encoding="utf-8")
    if url:
        pages = {"Source": "", "Documentation": "docs/start.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
        rows = [f'{name} = "{url}/{page}"' for name, page in pages.items()]
        with (folder / "pyproject.toml").open("a") as file:
            file.write("\n".join(["", "[project.urls]", *rows, ""]))


def same(first: Path, second: Path) -> None:
    """Ends the program where two builds differ."""
    one, two = ({path.name: digest(path) for path in folder.iterdir()} for folder in (first, second))
    if one != two or len(one) != 2 * len(members()):
        differ = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
        sys.exit(f"dist: error: two builds differ: {', '.join(differ) or 'a file is missing'}")
    say(f"{len(one)} files, the same in both builds")


def check() -> None:
    """Metadata and descriptions by twine, contents by check-wheel-contents."""
    files, wheels = sorted(map(str, DIST.iterdir())), sorted(map(str, DIST.glob("*.whl")))
    for command in (["twine", "check", "--strict", *files], ["check_wheel_contents", *wheels]):
        subprocess.run([sys.executable, "-m", *command], check=True, cwd=ROOT, stdout=sys.stderr)


def sbom(room: Path, uv: Path, name: str, wanted: list[str]) -> str:
    """CycloneDX JSON of what comes along with these distributions, in the locked versions."""
    python = room / "bin" / "python"
    uv_in_room = [str(uv), "--no-config", "--quiet"]
    subprocess.run([*uv_in_room, "venv", "--python", sys.executable, str(room)], check=True)
    install = [*uv_in_room, "pip", "install", "--python", str(python), "--only-binary", ":all:"]
    install += ["--find-links", str(DIST), "--constraint", str(ROOT / "requirements.lock")]
    pinned = [f"{one}=={version()}" for one in wanted]
    subprocess.run([*install, *pinned], check=True, cwd=room)
    listing = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--sv", "1.6", str(python)]
    document: dict[str, Any] = json.loads(subprocess.run(listing, check=True, stdout=subprocess.PIPE).stdout)
    ours = {one["name"]: one for one in document["components"] if one["name"] in wanted or one["name"] == name}
    if name in ours:
        document["components"].remove(ours[name])
        document["metadata"]["component"] = ours[name]
    else:
        root = {"bom-ref": name, "type": "container", "name": name, "version": version()}
        document["metadata"]["component"] = root
        edges = sorted(one["bom-ref"] for one in document["components"] if one["name"] in wanted)
        document["dependencies"].insert(0, {"ref": name, "dependsOn": edges})
    for one in [document["metadata"]["component"], *document["components"]]:
        wheel = DIST / f"{one['name'].replace('-', '_')}-{one['version']}-py3-none-any.whl"
        if wheel.exists():
            one["hashes"] = [{"alg": "SHA-256", "content": digest(wheel)}]
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def gpu_report(source: Source) -> list[Path]:
    """The files of `make gpu`, if it ran since the commit was made; else it is said that there are none."""
    files = [ROOT / "out" / "gpu" / name for name in ("report.json", "report.txt")]
    if files[0].exists():
        began = datetime.fromisoformat(json.loads(files[0].read_text())["began"].replace(" UTC", "+00:00"))
        if began.timestamp() >= source.time_s:
            return files
    say("no report of a GPU: `make gpu` has not run since this commit, on a machine that has one")
    return []


def statement(source: Source) -> dict[str, Any]:
    """What was made of what, as an in-toto Statement with SLSA Provenance."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": digest(path)}} for path in sorted(DIST.iterdir())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:pharoah:make-dist:1",
                "externalParameters": {"target": "dist", "SOURCE_URL": source.url},
                "internalParameters": {"SOURCE_DATE_EPOCH": source.time_s, "python": sys.version.split()[0]},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": source.commit}},
                    *({"name": name, "digest": {"sha256": digest(ROOT / name)}} for name in LOCKS),
                ],
            },
            "runDetails": {"builder": {"id": "urn:pharoah:make-dist"}},
        },
    }


LOCKS = ("requirements.lock", "distributions/requirements.txt")


def sign(payload: bytes, key: Path) -> None:
    """Writes the bundle, and the public key beside it."""
    private = load_pem_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name != "secp256r1":
        sys.exit(f"dist: error: {key} is no EC key on P-256")
    signed = private.sign(
        b"DSSEv1 %d %s %d %s" % (len(STATEMENT), STATEMENT.encode(), len(payload), payload), ec.ECDSA(SHA256())
    )
    public = private.public_key()
    (DIST / KEY).write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": base64.b64encode(hashlib.sha256(der).digest()).decode()}},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": STATEMENT,
            "signatures": [{"sig": base64.b64encode(signed).decode()}],
        },
    }
    (DIST / BUNDLE).write_text(json.dumps(bundle, indent=1) + "\n", encoding="utf-8")


def verify() -> None:
    """Raises what securesystemslib raises unless the key beside it signed the bundle; then compares every file."""
    folded = json.loads((DIST / BUNDLE).read_text())["dsseEnvelope"]
    for one in folded["signatures"]:
        one["keyid"] = "release"
    key = SSlibKey("release", "ecdsa", "ecdsa-sha2-nistp256", {"public": (DIST / KEY).read_text()})
    envelope = Envelope.from_dict(folded)
    envelope.verify([key], 1)
    signed = {one["name"]: one["digest"]["sha256"] for one in json.loads(envelope.payload)["subject"]}
    there = {path.name: digest(path) for path in DIST.iterdir() if path.name not in (BUNDLE, KEY)}
    if signed != there:
        sys.exit("dist: error: the files are not those of the statement")
    say(f"{len(signed)} files are as the signed statement says")


def digest(path: Path) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _key_for_trying() -> Path:
    path = ROOT / "out" / "release.key"
    if not path.exists():
        say(f"no KEY=: {path.relative_to(ROOT)} is made, for trying")
        made = ec.generate_private_key(ec.SECP256R1())
        path.touch(mode=0o600)
        path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def _name(member: Path) -> str:
    return str(tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]["name"])


def _git(*words: str) -> str:
    return subprocess.run([GIT, *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

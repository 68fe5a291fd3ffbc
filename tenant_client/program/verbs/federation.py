"""Verbs to join a federation and take part in its rounds: `join` and `serve`."""

import os
import signal
import threading
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.roots import root_of
from crypto.signing import SigningKey
from federation.base import logs
from federation.base.clock import now_hour
from federation.base.console import AsJson, InputFile
from federation.base.key_files import HomeError, read, read_key, replace_secret
from federation.base.logs import Format
from federation.base.screen import say, show, show_json
from federation.base.settings import load
from federation.base.settings_schema import write_schema
from federation.protocol.directory import Chain
from federation.protocol.enrolment import MemberCard, check_fingerprint, fingerprint
from federation.protocol.invitation import Invitation, accept
from federation.protocol.versions import OLDEST
from tenant_client.doctor.run.run_directory import LEASE_KEY
from tenant_client.doctor.settings import SAMPLE, TenantSettings
from tenant_client.program import service
from tenant_client.program.verbs.console import Home
from tenant_client.rounds import home as homes
from tenant_client.rounds.network.flower_node import NodeKey, make_node_key
from tenant_client.rounds.policy import SAMPLE as POLICY, Policy

LogFormat = Annotated[Format, typer.Option(help="Format of log lines: json or text.")]


class Carded(TypedDict):
    """A home with its keys, and the card for the provider."""

    home: str
    tenant: str
    card: str


class Joined(TypedDict):
    """The directory that was pinned: the fingerprint of its head, its tenants, and the addresses of its trustees."""

    home: str
    head: str
    members: int
    trustees: list[str]


def join(
    home: Home,
    invitation: Annotated[
        Path | None,
        typer.Argument(
            click_type=InputFile(), help="The provider's invitation; without it, make a card.", show_default=False
        ),
    ] = None,
    card: Annotated[Path, typer.Option(help="The file to write the card for the provider to.")] = Path("tenant.card"),
    head: Annotated[
        str, typer.Option(help="The expected fingerprint of the directory's head, from other members.")
    ] = "",
    lease_key: Annotated[
        Path | None,
        typer.Option(
            click_type=InputFile(),
            help="Take the key by which jobs find their leases, from a file of the provider's.",
            show_default=False,
        ),
    ] = None,
    *,
    new_node_key: Annotated[
        bool, typer.Option("--new-node-key", help="Replace the node's key and write a new card; other keys stay.")
    ] = False,
    pilot: Annotated[
        bool,
        typer.Option("--pilot", help="With an invitation: let plans of a pilot through, with 3 owners and 3 tenants."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Join a federation: make keys and a card, then take the invitation.

    Run it once for the card, and again with the provider's invitation. The second call pins the directory of members,
    and writes tenant.toml and policy.toml where there are none. Signing keys are never replaced, nor a changed policy.
    """
    if pilot and invitation is None:
        raise typer.BadParameter("--pilot belongs to the second call, with the invitation", param_hint="--pilot")
    if lease_key is not None:
        _take_lease_key(home, lease_key, as_json=as_json)
    elif invitation is None:
        _make_card(home, card, new_node_key=new_node_key, as_json=as_json)
    elif new_node_key:
        raise typer.BadParameter("--new-node-key takes no invitation: make the card first", param_hint="--new-node-key")
    else:
        _take(home, invitation, head, pilot=pilot, as_json=as_json)


class Keyed(TypedDict):
    """A home, and the file of its lease key."""

    home: str
    lease_key: str


def _take_lease_key(home: Path, file: Path, *, as_json: bool) -> None:
    homes.member(home)
    replace_secret(home / LEASE_KEY, read_key(file))
    _tell(Keyed(home=str(home), lease_key=str(home / LEASE_KEY)), as_json=as_json)


def _make_card(home: Path, card: Path, *, new_node_key: bool, as_json: bool) -> None:
    has_keys = (home / "signing.key").exists()  # the same keys give the same card again
    member = homes.member(home) if has_keys else homes.create(home, os.urandom, now_hour())
    if new_node_key or not (home / "node.key").exists():
        replace_secret(home / "node.key", make_node_key().private_pem)
    node = NodeKey.of(read(home / "node.key"))
    signing_key = SigningKey(read_key(home / "signing.key"))
    try:
        card.write_bytes(signing_key.sign(MemberCard(member, node.public_openssh.encode()), OLDEST))
    except OSError as error:
        raise HomeError(f"{error.strerror}: {card}", hint="pass another file with --card") from error
    _tell({"home": str(home), "tenant": str(member.tenant), "card": str(card)}, as_json=as_json)
    then = "restart `pharoah-tenant serve`" if has_keys and new_node_key else "run `pharoah-tenant join INVITATION`"
    say(f"next: give {card} to the provider, then {then}")


def _take(home: Path, invitation: Path, head: str, *, pilot: bool, as_json: bool) -> None:
    invited, chain = accept(read(invitation))
    if head:
        check_fingerprint(head, chain.directory.head)
    homes.pin(home, chain.entries)
    _write_settings(home, invited)
    homes.write_policy(home, pilot=pilot)
    _complete_settings(home)
    _tell(
        Joined(
            home=str(home),
            head=fingerprint(chain.directory.head),
            members=len(chain.directory.members),
            trustees=_trustees(chain),
        ),
        as_json=as_json,
    )
    if pilot:
        say("pilot: policy.toml lets plans through with 3 tenants behind a row or a sum, by default 5 and 10")
    if not head:
        say("next: compare the head with other tenants and the trustees, then run `pharoah-tenant serve`")


def _trustees(chain: Chain) -> list[str]:
    return [trustee.address for trustee in chain.directory.trustees]


def _write_settings(home: Path, invited: Invitation) -> None:
    (home / "provider.pem").write_bytes(root_of(invited.provider))
    settings = home / "tenant.toml"
    if not settings.exists():
        sample = SAMPLE.read_text(encoding="utf-8")
        settings.write_text(
            sample.replace('superlink = ""', f'superlink = "{invited.superlink}"').replace(
                'online = ""', f'online = "{invited.online}"'
            ),
            encoding="utf-8",
        )


def _complete_settings(home: Path) -> None:
    """Lets editors complete both files as this version reads them."""
    write_schema(home, TenantSettings, SAMPLE)
    write_schema(home, Policy, POLICY)


def _tell(fields: Carded | Joined | Keyed, *, as_json: bool) -> None:
    if as_json:
        show_json(fields)
        return
    show(*(f"{key}: {', '.join(value) if isinstance(value, list) else value}" for key, value in fields.items()))


def serve(home: Home, log_format: LogFormat = Format.JSON) -> None:
    """Run this tenant's node, which answers the provider's rounds.

    It runs only code that is installed here.
    """
    logs.configure(log_format)
    stop = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stop.set())
    homes.joined(home)
    settings = load(TenantSettings, home / "tenant.toml", os.environ)
    _complete_settings(home)
    service.serve(home, settings, stop)

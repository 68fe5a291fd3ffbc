"""A tenant whose node was shut out comes back with another key, under its own name and ledger; the old key does not.

A real SuperLink over TLS with real nodes; keys and cards are made by the verb that tenants use.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.protocol.enrolment import MemberCard, open_member_card
from provider_server.program.metrics import Metrics
from provider_server.program.operations.round_runner import Rounds
from provider_server.rounds.lease_book import RetiredNodeKey
from provider_server.rounds.network.superlink import SuperLink
from provider_server.rounds.settings import ProviderSettings, Rounds as RoundsTable
from simulation.run.federation import Federation
from tenant_client.program.cli import app
from tenant_client.rounds.network.flower_node import Link, NodeKey, NodeSettings
from tests.support.federations import Grounds, begin, fail
from tests.support.superlink import Certificates, Served, certificates, serving

pytestmark = pytest.mark.xdist_group("superlink")

TENANTS = 4
VICTIM = 0
SETTINGS = ProviderSettings(rounds=RoundsTable(every="manual", join_s=2.0, deadline_s=60.0, poll_s=0.05))


@dataclass
class Running:
    """A federation whose tenants are reached by real nodes."""

    federation: Federation
    link: SuperLink
    pem: Certificates
    root: Path
    nodes: dict[int, tuple[ExitStack, Served]] = field(default_factory=dict)

    @property
    def rounds(self) -> Rounds:
        of, metrics = self.federation, Metrics()
        return Rounds(of.provider, of.publisher, self.link, of.trustees, SETTINGS, metrics, lambda: 1000.0, 0.0)

    def home(self, number: int) -> Path:
        return self.root / "tenants" / f"{number:03d}"

    def card(self, number: int, *options: str) -> MemberCard:
        """The tenant makes a card, and the provider opens it."""
        file = self.root / f"{number}.card"
        words = ["join", "--home", str(self.home(number)), "--card", str(file), *options]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.stderr
        return open_member_card(file.read_bytes())

    def welcome(self, card: MemberCard) -> bool:
        return self.federation.provider.members.welcome(card.member, card.node_key.decode())

    def connect(self, number: int) -> Served:
        """Starts a tenant's node with the key in its home."""
        key = (self.home(number) / "node.key").read_bytes()
        settings = NodeSettings(self.link.address, self.pem.authority, key)
        stack = ExitStack()
        served = stack.enter_context(serving(self.federation.tenants[number].answer, settings))
        self.nodes[number] = stack, served
        return served

    def contributors(self, week: int) -> int:
        told = self.rounds.hold((168 * week, 168 * (week + 1)))
        return int(told["contributors"])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    pem = certificates(tmp_path / "tls")
    with (
        Grounds.founded(tmp_path, TENANTS).opened(tmp_path) as federation,
        SuperLink(pem.settings(tmp_path / "link.sqlite")) as link,
    ):
        made = Running(federation, link, pem, tmp_path)
        for number in range(TENANTS):
            begin(federation, number)
            fail(federation, number)
            assert not made.welcome(made.card(number))  # the directory has it already
        made.rounds.step()  # lets the nodes in
        for number in range(TENANTS):
            made.connect(number).wait_for(Link.CONNECTED)
        try:
            yield made
        finally:
            for stack, _ in made.nodes.values():
                stack.close()


def key_of(running: Running, number: int) -> str:
    return NodeKey.of((running.home(number) / "node.key").read_bytes()).public_openssh


@pytest.mark.nightly
def test_a_tenant_whose_node_was_unregistered_comes_back_under_its_own_name_and_ledger(running: Running) -> None:
    tenant, provider = running.federation.tenants[VICTIM], running.federation.provider
    assert running.contributors(0) == TENANTS
    name, old_key, old_card = tenant.id, key_of(running, VICTIM), running.card(VICTIM)
    running.link.unregister(old_key)  # by mistake, or by somebody who got at the operator's account
    _, shut_out = running.nodes[VICTIM]
    shut_out.wait_for(Link.REFUSED)
    assert running.contributors(1) == TENANTS - 1

    card = running.card(VICTIM, "--new-node-key")
    assert (card.member, card.node_key) == (old_card.member, key_of(running, VICTIM).encode())
    assert key_of(running, VICTIM) != old_key
    assert running.welcome(card) is False
    assert running.card(VICTIM) == card  # asked again, the same card
    running.rounds.step()
    running.nodes[VICTIM][0].close()
    running.connect(VICTIM).wait_for(Link.CONNECTED)

    assert running.contributors(2) == TENANTS
    assert tenant.id == name
    assert name in provider.directory.by_id
    assert [charge.start_h for charge in tenant.ledger.charges()] == [0.0, 168.0]  # the window that it missed as well
    with pytest.raises(RetiredNodeKey, match="retired before"):
        running.welcome(old_card)
    assert provider.members.node_keys().count(card.node_key.decode()) == 1


@pytest.mark.nightly
def test_a_key_that_was_replaced_opens_nothing_any_more(running: Running) -> None:
    """Its owner renews the key since somebody else has it: the old one must not stay good beside the new one."""
    _, stolen = running.nodes[VICTIM]
    running.welcome(running.card(VICTIM, "--new-node-key"))
    running.rounds.step()
    stolen.wait_for(Link.REFUSED)
    running.connect(VICTIM).wait_for(Link.CONNECTED)
    online = {node.public_openssh for node in running.link.nodes() if node.online}
    assert key_of(running, VICTIM) in online


@pytest.mark.nightly
def test_the_node_of_a_tenant_that_left_is_shut_out(running: Running) -> None:
    provider, gone = running.federation.provider, running.federation.tenants[VICTIM].id
    provider.members.enrol([], [gone])
    running.rounds.step()
    running.nodes[VICTIM][1].wait_for(Link.REFUSED)
    assert len([node for node in running.link.nodes() if node.online]) == TENANTS - 1
    with pytest.raises(RetiredNodeKey) as refused:
        running.welcome(running.card(VICTIM))
    assert "--new-node-key" in json.dumps(refused.value.hint)
    assert gone not in provider.directory.by_id
    assert running.welcome(running.card(VICTIM, "--new-node-key"))
    assert gone in provider.directory.by_id

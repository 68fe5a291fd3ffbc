"""Links between tokens of two epochs: when they hold, and what they rename."""

from crypto.ids import TenantId, Token
from federation.protocol.round_messages import TokenLink
from provider_server.fleet.learning.links import agreed, renamed
from provider_server.fleet.leases import Lease
from tests.support.factories import a_lease


def token(number: int) -> Token:
    return Token(bytes([number]) * Token.length)


def said(tenants: range, before: int, now: int) -> list[tuple[TenantId, TokenLink]]:
    return [(TenantId(bytes([of]) * TenantId.length), TokenLink(token(before), token(now))) for of in tenants]


def test_a_link_needs_as_many_tenants_as_a_row_and_each_counts_once() -> None:
    assert agreed(said(range(3), 1, 9), 3) == {str(token(1)): str(token(9))}
    assert agreed(said(range(2), 1, 9), 3) == {}
    assert agreed(said(range(2), 1, 9) * 3, 3) == {}


def test_of_two_links_that_contradict_each_other_the_one_of_more_tenants_holds_and_of_equals_none() -> None:
    for other in ((1, 8), (2, 9)):  # the same old token, or the same new one
        assert agreed(said(range(3), 1, 9) + said(range(3, 6), *other), 3) == {}
        assert agreed(said(range(4), 1, 9) + said(range(4, 7), *other), 3) == {str(token(1)): str(token(9))}
    assert len(agreed(said(range(3), 1, 9) + said(range(3), 2, 8), 3)) == 2


def test_names_go_on_over_several_epochs_and_circles_end() -> None:
    lease = a_lease(0, 0)
    old = lease.labels["subarchetype"]
    assert label(renamed([], [lease], {old: "b", "b": "c"})[1]) == "c"
    assert label(renamed([], [lease], {old: "b", "b": old})[1]) in {"b", old}
    assert renamed([], [lease], {}) == ([], [lease])


def label(leases: list[Lease]) -> str:
    return leases[0].labels["subarchetype"]

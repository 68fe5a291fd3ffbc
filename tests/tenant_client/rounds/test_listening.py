"""Hints that reach a tenant's home while its node serves, without `watch`."""

import logging

import pytest

from tenant_client.program.service import listening
from tests.support.waiting import until
from tests.tenant_client.program.test_watch_verb import LEASE, Place, place

__all__ = ["place"]  # a fixture


def test_hints_are_stored_while_the_node_serves(place: Place) -> None:
    with place.providing(3), listening(place.tenant):
        found = until(lambda: logged if len(logged := place.logged()) == 3 else None)
    assert [hint.number for hint in found] == [1, 2, 3]
    assert {hint.lease for hint in found} == {LEASE}


def test_a_provider_that_is_away_does_not_hinder_the_node(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with listening(place.tenant):
        pass
    assert place.logged() == []
    assert caplog.records == []

"""What tenants of a cloud know themselves, and what it tells one that is alone."""

from functools import cache

import numpy as np

from federation.protocol.bundle import Bundle
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.check import check
from federation.protocol.evidence import Evidence
from federation.protocol.ratio_likelihood import LOG_RATIOS
from federation.protocol.service_messages import CheckVerdict
from simulation.cloud.cloud import build_cloud
from simulation.cloud.scenario import load
from simulation.judge.histories import Histories, alone
from simulation.judge.user_loop import Trial
from simulation.studies.impact import trial_of
from tenant_client.doctor.records.own_leases import OwnLease


@cache
def trial() -> Trial:
    return trial_of(build_cloud(load("tiny"), np.random.default_rng(1)), 1)


def test_tenants_know_their_own_leases_and_failures_until_now() -> None:
    cloud, hour = trial().cloud, 200.0
    histories = Histories(trial())
    failures = histories.failures(hour)
    own = [histories.until(tenant, hour, failures) for tenant in range(cloud.scenario.tenants)]
    weeks = [cloud.week(week) for week in range(2)]
    failed = [one for week in weeks for one in week.failures if one.at_h < hour]
    infrastructure = sum(CAUSES[one.reason].domain is Domain.INFRASTRUCTURE for one in failed)
    assert 0 < infrastructure == sum(lease.failures for mine in own for lease in mine) < len(failed)
    assert sum(map(len, own)) == int((cloud.leases.start_h < hour).sum())
    assert max(lease.end_h for mine in own for lease in mine) == hour


def test_who_is_alone_sees_what_fails_more_often_than_the_rest_of_its_own() -> None:
    prior = np.logaddexp(np.log(0.96) - 0.5 * (LOG_RATIOS / 0.2) ** 2, np.log(0.04) - np.abs(LOG_RATIOS - 1.5))
    bundle = Bundle(1, 0, 168, (), (), (), None, evidence=Evidence((), tuple(prior.tolist()), 0.0, (), ()))
    labels = [{"subarchetype": n * 32, "context": "c" * 32, "context_level": "d" * 32} for n in "ab"]
    fails, holds = (OwnLease(one, 10, 0.0, 100.0, count) for one, count in zip(labels, (40, 1), strict=True))
    joined = alone(bundle)([fails, *[holds] * 39]).bundle
    assert [check(joined, one).verdict for one in labels] == [CheckVerdict.MISMATCH, CheckVerdict.OK]

"""How well the provider learns from a year of the `standard` scenario: without privacy, at epsilon 1 and at epsilon 2.

Each seed is a cloud of its own, with planted truth. From it comes what the federation would have opened week by week,
without the cost of the federation: exact tables by the tenants' own counting rules, rows by the provider's own plans,
the weighted sums of a series under noise of the law and scale that all tenants together would add (a sum of their
shares is within the accountant's tolerance of one discrete Gaussian of the summed variance), decoded by the release
gate. `provider_server.learning.learn` sees these releases and the leases, and nothing else. Masks, messages, ledgers
and databases are left out: none of them changes a released number.

What differs from `standard`: noise is correlated over the whole year, within one epoch, so that tokens stay; and the
cohort minimum is nine tenths of the tenants, as fits a year in which all of them answer (noise that is complete with
fewer tenants is larger than it must be with all).

`auroc`, `average_precision`   how well `probability_worse` ranks planted pairs among all rows of a single workload
`false_discovery_rate`         share of unplanted pairs among those published at 5%: pairs by falling probability, while
                               their mean probability is at least .95; all seeds together
`interval_coverage`            share of 95% intervals that hold the truth, the mean of the two that follow:
`hazard_interval_coverage`     infrastructure failures per node-hour of context, build-up level and age band, of the
                               leases that really ran there
`pair_interval_coverage`       ratios of planted pairs, whose truth is the planted factor

Not promised: that a real cloud has main effects that multiply. This one does.
"""

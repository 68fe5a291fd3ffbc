"""A round, from its plan to its release: enrolment, leases, groups, masks, the gate."""

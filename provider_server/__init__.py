"""The provider's half: leases, plans, rounds, releases and what can be learnt from them. It never sees an outcome."""

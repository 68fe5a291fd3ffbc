"""The provider's half, in three floors: fleet, rounds, program. It never sees an outcome of a single job."""

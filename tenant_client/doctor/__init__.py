"""Why a job failed: sources, workload, diagnosis, run, advice, records. Works without any network."""

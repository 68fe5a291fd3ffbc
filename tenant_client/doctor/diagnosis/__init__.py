"""Why a job failed: one cause out of the evidence of all sources."""

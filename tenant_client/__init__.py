"""The tenant client: describes workloads, records failures, counts and contributes. No readable data leaves."""

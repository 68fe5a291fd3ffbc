"""Readers of traces, logs and dumps, one module per format.

- Traces are read into `tenant_client.doctor.sources.trace.Trace`: what ran.
- Logs, dumps and environments are read into `tenant_client.doctor.sources.evidence.Evidence`: what failed, and where.
- All readers limit size and depth, execute nothing from a file, and raise `SourceError` with file and position.
"""

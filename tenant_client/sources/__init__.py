"""What a tenant's tools emit, one file per format.

Two kinds of source. A trace says what ran: it is read into a `tenant_client.sources.trace.Trace`. A log, dump or
environment says what went wrong or where: it is read into `tenant_client.sources.evidence.Evidence`. All of them are
capped in size and depth, run nothing that a file says, and fail with a `SourceError` that names file and position.
"""

"""Inside a training process: how far it is, and now and then a trace of a few steps.

Standard library only, and torch as far as the job itself imports it. Nothing here raises into the job, prints, or opens
a connection; all that it writes are small files in `PHAROAH_RUN_DIR`, readable by the job's owner alone.
"""

"""Runs a job and records how it ends, without changing how it runs or ends.

Three processes run beside the job, so that a crash of one cannot end the job:

    supervisor   starts the job, forwards signals, waits, exits with the job's status   supervise, attempt
    relay        copies the job's output unchanged and keeps the last part of it        relay, streams
    observer     reads progress, journals, diagnoses; may crash, hang or be killed      observe, watchdog

`attempt.run` is an attempt from start to finish. Errors of Pharoah's own code become warnings (`fail_open`).
"""

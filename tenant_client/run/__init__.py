"""A job runs under watch, and nothing of ours can change how it runs or ends.

Three small processes stand around the job, so that none of them can take it along when it breaks:

    supervisor   starts the job, forwards signals, waits, returns the job's own ending     supervise, narrate
    relay        copies the job's output unchanged and keeps the last of it                relay, streams
    observer     reads progress, journals, diagnoses; may crash, hang or be killed         observe, watch, attempts

`narrate.run` shows an attempt from start to finish. Whatever is ours fails open, in `failopen`, with a warning at most.
"""

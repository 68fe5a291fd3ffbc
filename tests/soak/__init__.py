"""The soak: a whole federation of real programs over more than a year of its weeks, while everything goes wrong once.

    $ make soak MINUTES=60    # out/soak/report.md, and the logs of all programs

The wall clock of all programs is moved from week to week; they wait by the monotonic clock as ever.
"""

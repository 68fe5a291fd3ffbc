"""The four syndromes of a job whose ranks wait for each other, while it runs.

| | a rank is not there | all are there |
|---|---|---|
| nothing moves | non-communication hang | communication hang |
| steps take longer | non-communication slow | communication slow |

In the order of the data: `ranks` takes the cells of the ranks and asks them; `process` and `links` read what the kernel
knows of them; `views` is all of that as values; `hangs` and `slowness` judge it, and read no clock; `watch` leads
through it and words the findings.

Source: C4D (HPCA 2025) for the syndromes.
"""

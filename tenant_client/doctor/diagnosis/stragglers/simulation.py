"""Runs a schedule: when each operation ends if it takes as long as is said. Arrays are by operation, rank and step."""

from collections.abc import Sequence

import numpy as np

from tenant_client.doctor.diagnosis.stragglers.schedule import Meeting
from tenant_client.doctor.sources.step_trace import Floats, StepTrace

CLOCKS_S = 1e-2  # clocks of two ranks differ by less; a transfer that ended earlier than it began by more took nothing


def own_times(trace: StepTrace, meetings: Sequence[Meeting]) -> Floats:
    """How long each operation itself took: of a transfer the time since the last participant was there."""
    times: Floats = trace.duration_s.copy()
    for meeting in meetings:
        if meeting.transfers:
            members = list(meeting.members)
            begin = trace.start_s[members].max(axis=0)
            if meeting.across:
                begin = begin.max(axis=0, keepdims=True)
            times[members] = trace.end_s[members] - begin
            times[members] = np.where(times[members] <= -CLOCKS_S, 0.0, times[members])
    return times


def step_times(meetings: Sequence[Meeting], times_s: Floats) -> Floats:
    """The seconds that each step takes if operations start as soon as they can and take `times_s`."""
    end = np.zeros_like(times_s)
    for meeting in meetings:
        begin = np.zeros(times_s.shape[1:])
        for waits_for in meeting.after:
            for index in waits_for:
                np.maximum(begin, end[index], out=begin)
        if meeting.across:
            begin = begin.max(axis=0, keepdims=True)
        for member in meeting.members:
            end[member] = begin + times_s[member]
    longest: Floats = end.max(axis=(0, 1))
    return longest

"""Faults injected while a job of the catalogue trains, and what telemetry shows of them: traces for `fitted_buildup`.

Two ranks train as two nodes of this machine, each in a network and control groups of its own, joined by a wire; the
second has the fault. Nothing but these is touched, and all of it is undone however the program ends (`undo`).
"""

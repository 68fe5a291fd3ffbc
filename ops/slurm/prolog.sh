#!/bin/sh
# Checks a job on the nodes that it was given, before it starts: `pharoah-tenant check gate`, by the published bundle alone.
#
# Use it where the tenant's own account runs it:
#   at the top of a job script:   /path/to/prolog.sh || exit 1
#   for each step, by srun:       srun --task-prolog=/path/to/prolog.sh pharoah-tenant run -- python train.py
#   for all jobs, in slurm.conf:  TaskProlog=/path/to/prolog.sh
#
# PHAROAH_GATE=off   does nothing at all
# PHAROAH_GATE=warn  (default) says what is known, and lets the job start
# PHAROAH_GATE=refuse  ends with 1 where the workload does not fit the nodes, and with 0 in every other case
#
# It fails open: a program that is missing, slow or broken lets the job start.

[ "${PHAROAH_GATE:-warn}" = off ] && exit 0
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0 # one task speaks for all
[ -n "$PHAROAH_TENANT" ] || command -v pharoah-tenant >/dev/null || exit 0 # jobs of those who have not set it up

said=$(timeout "${PHAROAH_GATE_S:-30}" "${PHAROAH_TENANT:-pharoah-tenant}" check gate 2>&1 </dev/null)
code=$?
# Slurm prints those lines of a task prolog that begin with "print".
[ -n "$said" ] && printf '%s\n' "$said" | sed "s/^/${SLURM_STEP_ID:+print }/"
[ "$code" = 4 ] && exit 1
exit 0

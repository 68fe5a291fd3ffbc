#!/bin/sh
# TaskProlog of Slurm (slurm.conf, or srun --task-prolog): says before each job step whether the workload fits its lease.
#
# It only looks: whatever the check says, this script ends with 0. (A slurmd Prolog that ends otherwise drains the node,
# so the check does not belong there.) Lines that begin with `print` go to the job's output, `export` sets a variable.
# What it needs: PHAROAH_LEASE, the lease by the provider's name, and PHAROAH_HOME unless the home is the default one.

command -v pharoah-tenant >/dev/null 2>&1 || PATH="$PATH:/usr/local/bin:/opt/pharoah/bin"
[ "${SLURM_PROCID:-0}" = 0 ] && [ -n "${PHAROAH_LEASE:-}" ] || exit 0

said=$(timeout "${PHAROAH_CHECK_TIMEOUT_S:-10}" pharoah-tenant check --gate "$PHAROAH_LEASE" 2>&1)
code=$?
case $code in
0) verdict=ok ;;
1) verdict=warning ;;
2) verdict=mismatch ;;
*) verdict=unknown ;;
esac

echo "export PHAROAH_VERDICT=$verdict"
printf '%s\n' "$said" | sed 's/^/print pharoah: /'
exit 0

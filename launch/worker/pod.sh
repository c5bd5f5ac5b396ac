#!/usr/bin/env bash
# In a container of GKE: records the code in the work directory, then trains.
#
#   WORKDIR=gs://... bash pod.sh FLAG_OF_VIT_JAX_MAIN...
#
# launch/gke.py run makes this the command of an XPK workload.
#
# The JobSet restarts all pods together, or none, according to the exit code
# that it sees first. When one pod fails, the others lose it and end with 76 or
# 134. So this script delays these exits, to let the JobSet see the failed pod's
# exit code first.
#
#   LOST_PAUSE  seconds before an exit with 76 or 134 (20)
set -euo pipefail

pause=${LOST_PAUSE:-20}
code=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$code"

child=''
stopped=''
interrupted=''

# The program gets only the signals that this script traps and passes on.
# shellcheck disable=SC2329  # The trap calls it.
forward() {
  stopped=yes
  interrupted=yes
  if [[ -n $child ]]; then
    kill -TERM "$child" 2>/dev/null || true
  fi
}
trap forward TERM INT

# Starts a child, waits for its end, and sets `result` to its exit code.
wait_for() {
  local first=''
  "$@" &
  child=$!
  # The signal may have come before the child started.
  [[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null || true
  # A trapped signal ends `wait` early, while the program still saves.
  while true; do
    interrupted=''
    result=0
    wait "$child" || result=$?
    # A second `wait` for a process that has ended gives 127.
    [[ -z $first || $result -ne 127 ]] || result=$first
    first=$result
    [[ -n $interrupted ]] || break
  done
  child=''
}

bash launch/worker/huge_pages.sh
if [[ ${JOB_COMPLETION_INDEX:-0} == 0 && ${MEGASCALE_SLICE_ID:-0} == 0 ]]; then
  wait_for python launch/worker/record.py "$WORKDIR" \
    python -m vit_jax.main "$@"
  ((result == 0)) ||
    echo 'warning: the code was not recorded in the work directory.' >&2
fi
wait_for python -m vit_jax.main "$@"
status=$result
if ((status == 76 || status == 134)) && [[ -z $stopped ]]; then
  wait_for sleep "$pause"
fi
exit "$status"

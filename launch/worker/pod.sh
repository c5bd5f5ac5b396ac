#!/usr/bin/env bash
# In a container of GKE: notes the code in the work directory, then trains.
#
#   bash pod.sh FLAG_OF_VIT_JAX_MAIN...
#
# Restarting is the JobSet's business: it starts all pods again together, or
# none, by the exit code that it sees first. A pod that ends without a word ends
# the others with 76, so 76 is handed on late: what it ended with must be seen
# before that.
#
#   LOST_PAUSE  seconds before an exit with 76 (20)
set -euo pipefail

pause=${LOST_PAUSE:-20}
code=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$code"

child=''
stopped=''
interrupted=''

# This is process 1 of the container: Linux gives it no signal that it does
# not ask for, and the program only what is passed on here.
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
  # The signal may have come before there was a child to pass it to.
  [[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null || true
  # A trapped signal ends `wait` early; the program is then still saving.
  while true; do
    interrupted=''
    result=0
    wait "$child" || result=$?
    # Waiting again for what is gone gives 127.
    [[ -z $first || $result -ne 127 ]] || result=$first
    first=$result
    [[ -n $interrupted ]] || break
  done
  child=''
}

if [[ ${JOB_COMPLETION_INDEX:-0} == 0 && ${SLICE_INDEX:-0} == 0 ]]; then
  wait_for python launch/worker/record.py "$WORKDIR" \
    python -m vit_jax.main "$@"
  ((result == 0)) ||
    echo 'warning: the code was not recorded in the work directory.' >&2
fi
wait_for python -m vit_jax.main "$@"
status=$result
if ((status == 76)) && [[ -z $stopped ]]; then
  wait_for sleep "$pause"
fi
exit "$status"

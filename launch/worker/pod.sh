#!/usr/bin/env bash
# In a container of GKE: notes the code in the work directory, then trains.
#
#   bash pod.sh FLAG_OF_VIT_JAX_MAIN...
#
# Restarting is the JobSet's business: it starts all pods again together.
set -euo pipefail

code=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$code"
if [[ ${JOB_COMPLETION_INDEX:-0} == 0 && ${SLICE_INDEX:-0} == 0 ]]; then
  python launch/worker/record.py "$WORKDIR" python -m vit_jax.main "$@" ||
    echo 'warning: the code was not recorded in the work directory.' >&2
fi
# exec: SIGTERM must reach the program.
exec python -m vit_jax.main "$@"

#!/usr/bin/env bash
# On a worker: shows the log's last lines, and with FOLLOW=yes also new lines.
#
#   bash logs.sh LINES
#
# Each line names the worker, because several workers may be shown at once.
set -euo pipefail

log=${VIT_JAX_HOME:-$HOME/vit_jax_home}/run/log
options=()
if [[ ! -f $log ]]; then
  echo "${HOSTNAME##*-w-}: no log: no run was started here yet."
  # With FOLLOW, `tail -F` waits for the log.
  [[ ${FOLLOW:-no} == yes ]] || exit 0
fi
[[ ${FOLLOW:-no} != yes ]] || options=(-F)
tail -n "${1:-50}" "${options[@]}" "$log" 2>/dev/null |
  sed --unbuffered "s/^/${HOSTNAME##*-w-}: /"

#!/usr/bin/env bash
# On a worker: the log's last lines, and with FOLLOW=yes what is added to it.
#
#   bash logs.sh LINES
#
# Each line names the worker: several are shown at once.
set -euo pipefail

log=${VIT_JAX_HOME:-$HOME/vit_jax_home}/run/log
options=()
if [[ ! -f $log ]]; then
  echo "${HOSTNAME##*-w-}: no log: no run was started here yet."
  # `tail -F` waits for it.
  [[ ${FOLLOW:-no} == yes ]] || exit 0
fi
[[ ${FOLLOW:-no} != yes ]] || options=(-F)
tail -n "${1:-50}" "${options[@]}" "$log" 2>/dev/null |
  sed --unbuffered "s/^/${HOSTNAME##*-w-}: /"

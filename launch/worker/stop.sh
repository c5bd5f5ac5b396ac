#!/usr/bin/env bash
# On a worker: stops the run with SIGTERM, and waits until it has saved.
#
#   bash stop.sh [restart]
#
# With `restart`, the run does not count as stopped by hand.
set -euo pipefail

directory=${VIT_JAX_HOME:-$HOME/vit_jax_home}/run
if systemctl is-active --quiet vit_jax; then
  [[ ${1:-} == restart ]] || touch "$directory/stop_requested"
  sudo systemctl stop vit_jax
fi
state='no run'
[[ ! -f $directory/state ]] || state=$(<"$directory/state")
echo "$HOSTNAME: $state"

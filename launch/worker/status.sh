#!/usr/bin/env bash
# On a worker: prints `worker=NAME alive=yes|no state=... | last log line`.
#
# The states are new (set-up is missing or incomplete), idle (no run yet), and
# those of run.sh. A run that is not alive and has no final state was cut off
# together with its machine.
set -euo pipefail

home=${VIT_JAX_HOME:-$HOME/vit_jax_home}
alive=no
if systemctl is-active --quiet vit_jax; then
  alive=yes
fi
state=new
if [[ -f $home/ready || $alive == yes ]]; then
  state=idle
  [[ ! -f $home/run/state ]] || state=$(<"$home/run/state")
fi
last=''
[[ ! -f $home/run/log ]] || last=$(tail -n 1 "$home/run/log")
echo "worker=$HOSTNAME alive=$alive state=$state | $last"

#!/usr/bin/env bash
# On a worker: starts a run that outlives this shell.
#
#   bash start.sh [NAME=VALUE ...] -- FLAG_OF_VIT_JAX_MAIN...
#
# The run is a systemd service, so it is not tied to the ssh session. When the
# machine shuts down or is preempted, the service gets SIGTERM and time to save.
# NAME=VALUE are environment variables of the run and of run.sh.
set -euo pipefail

home=${VIT_JAX_HOME:-$HOME/vit_jax_home}
directory=$home/run
variables=("HOME=$HOME" "RUN_DIRECTORY=$directory" 'PYTHONUNBUFFERED=1'
  "PYTHON=$home/venv/bin/python")
while [[ $# -gt 0 && $1 != -- ]]; do
  variables+=("$1")
  shift
done
if [[ $# -lt 2 ]]; then
  echo 'usage: bash start.sh [NAME=VALUE ...] -- FLAG...' >&2
  exit 2
fi
shift

if [[ ! -f $home/ready ]]; then
  echo "error: $HOSTNAME is not set up. Run tpu_vm.py setup first." >&2
  exit 1
fi
if systemctl is-active --quiet vit_jax; then
  echo "error: a run is alive on $HOSTNAME already. Stop it first." >&2
  exit 1
fi
mkdir -p "$directory"
rm -f "$directory/state" "$directory/stop_requested"
# A restart of the machine loses this setting, so each start makes it again.
case $(curl --silent --max-time 5 --header Metadata-Flavor:Google \
  http://metadata.google.internal/computeMetadata/v1/instance/attributes/accelerator-type || true) in
  '' | v[234]-*) ;;
  *) sudo bash "$home/code/launch/worker/huge_pages.sh" ;;
esac
settings=()
for variable in "${variables[@]}"; do
  settings+=("--setenv=$variable")
done
# KillMode=mixed: only run.sh gets SIGTERM, and passes it on. --collect: without
# it a failed run would keep the unit's name and block the next run.
# systemd expands $A in the command, but takes $$ for $.
# OOMPolicy=continue: when the kernel kills the program for lack of memory,
# run.sh must live to restart it; systemd's default stops the whole unit.
sudo systemd-run --quiet --collect --unit=vit_jax \
  --uid="$(id -u)" --gid="$(id -g)" \
  --property=KillMode=mixed --property=TimeoutStopSec=600 \
  --property=OOMPolicy=continue \
  --property=LimitMEMLOCK=infinity --property=LimitNOFILE=1048576 \
  --working-directory="$home/code" "${settings[@]}" \
  bash "$home/code/launch/worker/run.sh" \
  "$home/venv/bin/python" -m vit_jax.main "${@//\$/\$\$}"
echo "$HOSTNAME: started"

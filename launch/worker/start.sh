#!/usr/bin/env bash
# On a worker: starts a run that outlives this shell.
#
#   bash start.sh [NAME=VALUE ...] -- FLAG_OF_VIT_JAX_MAIN...
#
# The run is a service of systemd: it is not tied to the ssh session, and when
# the machine is shut down (a preemption, too) it gets SIGTERM and time to
# save. NAME=VALUE are environment variables of it and of run.sh.
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
  echo "error: $HOSTNAME is not set up." >&2
  exit 1
fi
if systemctl is-active --quiet vit_jax; then
  echo "error: a run is alive on $HOSTNAME already." >&2
  exit 1
fi
mkdir -p "$directory"
rm -f "$directory/state" "$directory/stop_requested"
# The setting is gone after a restart of the machine, so it is made here.
case $(curl --silent --max-time 5 --header Metadata-Flavor:Google \
  http://metadata.google.internal/computeMetadata/v1/instance/attributes/accelerator-type || true) in
  '' | v[234]-*) ;;
  *) sudo bash "$home/code/launch/worker/huge_pages.sh" ;;
esac
settings=()
for variable in "${variables[@]}"; do
  settings+=("--setenv=$variable")
done
# KillMode=mixed: run.sh passes SIGTERM on. Without --collect a failed run
# would keep its name and block the next. OOMPolicy=continue: when memory runs
# out and the kernel kills the program, run.sh must live to start it again;
# systemd's default stops the whole unit.
sudo systemd-run --quiet --collect --unit=vit_jax \
  --uid="$(id -u)" --gid="$(id -g)" \
  --property=KillMode=mixed --property=TimeoutStopSec=600 \
  --property=OOMPolicy=continue \
  --property=LimitMEMLOCK=infinity --property=LimitNOFILE=1048576 \
  --working-directory="$home/code" "${settings[@]}" \
  bash "$home/code/launch/worker/run.sh" \
  "$home/venv/bin/python" -m vit_jax.main "$@"
echo "$HOSTNAME: started"

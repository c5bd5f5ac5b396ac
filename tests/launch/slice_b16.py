"""gcloud's command lines and answers for a slice named b16 and a run on it."""

import shlex

from vit_jax.launch import tpu_vm

PLACE = '--zone=us-central2-b --project=my-project'
SCRIPTS = 'vit_jax_home/code/launch/worker'
TPU = 'gcloud compute tpus'
SSH = f'{TPU} tpu-vm ssh b16 {PLACE} --worker=all --quiet'
FLAGS = [
  '--config=configs/pretrain.py:ViT-B/16,imagenet2012',
  '--workdir=gs://bucket/runs/b16',
  '--config.image_size=(384, 384)',
]
QUOTED = shlex.join(FLAGS)
TYPES = f'{TPU} accelerator-types list'
QUOTAS = 'gcloud beta quotas info list'
QUEUE = f'{TPU} queued-resources list'
NODES = f'{TPU} tpu-vm list'
# What is in the cloud, as conftest.py's `cloud.things`.
B16 = {
  'compute tpus queued-resources': {'b16': {'state': {'state': 'ACTIVE'}}},
  'compute tpus tpu-vm': {'b16': {'state': 'READY', 'health': 'HEALTHY'}},
}
START = f'{SSH} ' + shlex.quote(
  f'--command=bash {SCRIPTS}/start.sh WORKDIR=gs://bucket/runs/b16'
  f' RESTARTS=20 RESTART_PAUSE=30 -- {QUOTED}'
)
RECORD = f'{SSH} '.replace('all', '0') + shlex.quote(
  f'--command=vit_jax_home/venv/bin/python {SCRIPTS}/record.py'
  f' gs://bucket/runs/b16 python -m vit_jax.main {QUOTED}'
)
SCP = (
  f'{TPU} tpu-vm scp ARCHIVE b16:vit_jax_code.tar.gz {PLACE}'
  ' --worker=all --quiet'
)
SETUP = (
  f"{SSH} '--command=tar -xzOf vit_jax_code.tar.gz launch/worker/setup.sh >"
  " vit_jax_setup.sh && env LOCK=tpu bash vit_jax_setup.sh'"
)
# The set-up of `watch`, with the versions that the run has recorded.
SETUP_RECORDED = SETUP.replace(
  'LOCK=tpu', 'LOCK=tpu WORKDIR=gs://bucket/runs/b16'
)


def call(line):
  """Runs a command of tpu_vm.py, given as one line."""
  tpu_vm.main(shlex.split(line))


def queue_row(name, state):
  path = f'projects/my-project/locations/us-central2-b/queuedResources/{name}'
  return {'name': path, 'state': {'state': state}}


def node_row(name, state, health='HEALTHY'):
  path = f'projects/my-project/locations/us-central2-b/nodes/{name}'
  return {'name': path, 'state': state, 'health': health}

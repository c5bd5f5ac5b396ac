"""Answers for `watch` about the slice b16, and the commands that it runs."""

import pytest

from tests.launch.slice_b16 import PLACE, QUOTED, SSH, TPU, call

CREATE = (
  f'{TPU} queued-resources create b16 {PLACE} --node-id=b16'
  ' --accelerator-type=v4-8 --runtime-version=tpu-ubuntu2204-base --spot'
)
DELETE = f'{TPU} queued-resources delete b16 {PLACE} --force --quiet'
STOP = (
  f"{SSH} '--command=if [ -f vit_jax_home/code/launch/worker/stop.sh ];"
  " then bash vit_jax_home/code/launch/worker/stop.sh{}; fi'"
)
ASK = f'{TPU} tpu-vm ssh b16 {PLACE} --worker=all --quiet --command=if [ -f'
ASK += ' vit_jax_home/code/launch/worker/status.sh'
WATCH = (
  f'watch --name=b16 --accelerator=v4-8 --spot --yes --poll=0 {{}} -- {QUOTED}'
)


def say(state, alive='no', code=''):
  return f'worker=w-0 alive={alive} state={state}{code} | last line\n'


def changes(cloud):
  """Returns the commands that change something, not those that only read."""
  return [
    line
    for line in cloud.lines
    if line.startswith(TPU)
    and ' list ' not in line
    and 'status.sh' not in line
    and ' describe ' not in line
  ]


def fails(flags=''):
  with pytest.raises(SystemExit) as error:
    call(WATCH.format(flags))
  return error.value.code

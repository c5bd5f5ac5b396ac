"""A worker process of `gpu_vs_timm`: our training step, or the plain one."""

import json
import sys
from typing import Any

import jax
import ml_collections

from benchmarks.measure import peaks, settings, training
from vit_jax import config as config_lib


def config_of(task: dict[str, Any]) -> ml_collections.ConfigDict:
  """Returns the complete config of a task; see `main`."""
  config = config_lib.default()
  config.data.dataset = 'synthetic'  # No data set is opened.
  config.model.name = task['model']
  if task['depth']:
    config.model.depth = task['depth']
  config.model.dtype = task['dtype']
  config.image_size = (task['image_size'],) * 2
  config.num_classes = task['num_classes']
  config.data.batch_size = task['batch_size']
  config.total_steps = 10_000
  config.schedule = config_lib.schedule('constant', peak=1e-3, warmup_steps=0)
  config.optimizer = config_lib.adam(weight_decay=0.1)
  config.mesh.data = 1
  if task['contender'] == 'ours' and task['overrides']:
    config = settings.override(config, task['overrides'])
  return settings.resolve(config)


def main(task: dict[str, Any]) -> dict[str, Any]:
  """Measures the training step of a task.

  Args:
    task: `contender` ('ours' or 'plain'), `model`, `depth` (0: the model's
      own), `dtype`, `image_size` (a side), `num_classes`, `batch_size`,
      `overrides` (of the config, only for ours; may be ''), `turns`, `steps`
      and `warmup`.

  Returns:
    See `gpu_vs_timm.work`.
  """
  make = training.plain if task['contender'] == 'plain' else training.ours
  step = make(config_of(task))
  seconds = [
    step.turn(task['steps'], task['warmup']) for _ in range(task['turns'])
  ]
  device = jax.devices()[0]
  return {
    'seconds': seconds,
    'params': step.facts['params'],
    'compile_sec': step.facts['trace_sec'] + step.facts['compile_sec'],
    'peak_gib': peaks.memory_gib(),
    'device_kind': device.device_kind,
    'versions': {'jax': jax.__version__},
  }


if __name__ == '__main__':
  print(json.dumps(main(json.loads(sys.argv[1]))))

"""A worker process of `gpu_vs_timm`: our training step."""

import json
import sys
from typing import Any

import jax

from benchmarks import steps
from vit_jax import config as config_lib
from vit_jax.plan import analysis


def main(task: dict[str, Any]) -> dict[str, Any]:
  """Measures the training step of a task.

  Args:
    task: `model`, `image_size` (a side), `num_classes`, `batch_size`, `turns`,
      `steps` and `warmup`.

  Returns:
    See `gpu_vs_timm.work`.
  """
  config = config_lib.default()
  config.update_from_flattened_dict(
    {
      'model.name': task['model'],
      'model.dtype': 'bfloat16',
      'image_size': (task['image_size'],) * 2,
      'num_classes': task['num_classes'],
      'data.batch_size': task['batch_size'],
      'total_steps': 10_000,
      'mesh.data': 1,
    }
  )
  config.schedule = config_lib.schedule('constant', peak=1e-3, warmup_steps=0)
  config.optimizer = config_lib.optimizer('adamw', weight_decay=0.1)
  step = steps.build(analysis.resolve(config, jax.default_backend()))
  turns, facts = range(task['turns']), step.facts
  return {
    'seconds': [step.turn(task['steps'], task['warmup']) for _ in turns],
    'params': facts['params'],
    'compile_sec': facts['compile_sec'],
    'peak_gib': steps.peak_gib(),
    'device_kind': facts['device_kind'],
    'versions': {'jax': jax.__version__},
  }


if __name__ == '__main__':
  print(json.dumps(main(json.loads(sys.argv[1]))))

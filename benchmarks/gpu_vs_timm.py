"""Compares with timm on one GPU: `python -m benchmarks.gpu_vs_timm`.

Times the training step of the same model in bfloat16, without dropout, at the
same batch and image size, on synthetic data on the device:

  ours    vit_jax's own step
  timm    timm's model, torch.compile, bfloat16 autocast, fused AdamW

They take turns. Each turn is a new process, which has the device to itself. The
last one needs torch and timm (`pip install -e '.[hf]'`), which may belong to
another interpreter:

  python -m benchmarks.gpu_vs_timm --batch_size=256
  python -m benchmarks.gpu_vs_timm --table     B/16 at 256, L/16 at 128 images
  python -m benchmarks.gpu_vs_timm --torch_python=/venvs/torch/bin/python
  python -m benchmarks.gpu_vs_timm --device=cpu --models=ViT-Ti/16 \\
    --image_size=32 --batch_size=8 --steps=2

`times` is the step time over ours. MFU counts the same operations for both:
those of the model as published.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
from absl import flags

from benchmarks import report
from vit_jax import accounting, models
from vit_jax.runtime import command_line, stopwatch

_ROOT = pathlib.Path(__file__).parents[1]
WORKERS = {'ours': 'benchmarks.jax_worker', 'timm': 'benchmarks.timm_worker'}
# The models of --table, and their batch sizes.
_PAIRS = {'ViT-B/16': 256, 'ViT-L/16': 128}

_MODELS = flags.DEFINE_list(
  'models', ['ViT-B/16', 'ViT-L/16'], 'Names of ViTs; timm has most of them.'
)
_TABLE = flags.DEFINE_bool(
  'table',
  False,
  'Measure ViT-B/16 at batch 256 and ViT-L/16 at batch 128, in place of'
  ' --models and --batch_size.',
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 128, 'Images a step.', 1)
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 224, 'Side in pixels.', 1)
_DEVICE = flags.DEFINE_enum(
  'device',
  'cuda',
  ['cuda', 'cpu'],
  'The first GPU; or the CPU for a test, in which torch does not compile.',
)
_TORCH_PYTHON = flags.DEFINE_string(
  'torch_python', sys.executable, 'The interpreter that has torch and timm.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 2, 'Processes per contender.', 1)
_STEPS = flags.DEFINE_integer('steps', 20, 'Steps of a measurement.', 1)


def main():
  # This process only counts operations; the workers use the device.
  jax.config.update('jax_platforms', 'cpu')
  check_torch(_TORCH_PYTHON.value)
  pairs = dict.fromkeys(_MODELS.value, _BATCH_SIZE.value)
  pairs = _PAIRS if _TABLE.value else pairs
  results = {}
  for model, batch_size in pairs.items():
    results |= measure(model, batch_size)
  report.publish(
    'gpu_vs_timm',
    results,
    f'Training step at {_IMAGE_SIZE.value} px, bfloat16, on'
    f' {next(iter(results.values()))["device_kind"]}',
  )


def check_torch(python: str) -> None:
  """Raises ValueError unless an interpreter has torch and timm."""
  done = subprocess.run(
    [python, '-c', 'import timm, torch'], capture_output=True, text=True
  )
  if done.returncode:
    raise ValueError(
      f'{python} cannot import torch and timm:'
      f' {done.stderr.strip().splitlines()[-1]}. Install them (pip install -e'
      " '.[hf]'), or name an interpreter that has them with --torch_python."
      ' benchmarks.train_step times our step alone.'
    )


def measure(model: str, batch_size: int) -> dict[str, dict[str, Any]]:
  """Compares both for one model.

  Returns:
    `MODEL CONTENDER` -> the figures of `report.of_steps`, and those of `work`
    but `seconds`.

  Raises:
    ValueError: one fails, or the numbers of parameters differ.
  """
  task = {
    'model': model,
    'batch_size': batch_size,
    'image_size': _IMAGE_SIZE.value,
    'device': _DEVICE.value,
    'num_classes': 1000,
    'turns': 3,
    'steps': _STEPS.value,
    'warmup': 3,
  }
  built = models.build(model, num_classes=task['num_classes'])
  macs = accounting.forward_macs(built, _IMAGE_SIZE.value)
  with tempfile.TemporaryDirectory() as cache:
    samples = stopwatch.take_turns(
      {
        f'{model} {name}': functools.partial(work, name, task, cache)
        for name in WORKERS
      },
      _ROUNDS.value,
    )
  params = {name: found[0]['params'] for name, found in samples.items()}
  if len(set(params.values())) > 1:
    raise ValueError(f'{model} differs in its number of parameters: {params}.')
  seconds, facts = {}, {}
  for name, found in samples.items():
    seconds[name] = [s for sample in found for s in sample.pop('seconds')]
    # Later processes read the first one's compilation cache.
    facts[name] = {
      **found[0],
      'batch_size': batch_size,
      'devices': 1,
      'forward_macs': macs,
    }
  return report.of_steps(seconds, facts)


def work(contender: str, task: Mapping[str, Any], cache: str) -> dict[str, Any]:
  """Runs one contender in a new process.

  Args:
    contender: one of WORKERS.
    task: see `jax_worker.main` and `timm_worker.main`.
    cache: folder for the compilation caches of JAX and torch.

  Returns:
    `seconds` (a list of step times), `params`, `compile_sec`, `peak_gib`,
    `device_kind`, `versions`.

  Raises:
    ValueError: the process failed.
  """
  report.say(f'{task["model"]}: {contender} ...')
  python = _TORCH_PYTHON.value if contender == 'timm' else sys.executable
  gpus = os.environ.get('CUDA_VISIBLE_DEVICES', '0')
  environment = os.environ | {
    'CUDA_VISIBLE_DEVICES': gpus.split(',')[0],
    'JAX_PLATFORMS': task['device'],
    'JAX_COMPILATION_CACHE_DIR': f'{cache}/jax',
    'TORCHINDUCTOR_CACHE_DIR': f'{cache}/torch',
  }
  done = subprocess.run(
    [python, '-m', WORKERS[contender], json.dumps(task)],
    cwd=_ROOT,
    env=environment,
    capture_output=True,
    text=True,
  )
  if done.returncode:
    last = '\n'.join((done.stdout + done.stderr).splitlines()[-15:])
    raise ValueError(
      f'{contender} failed with exit code {done.returncode}:\n{last}'
    )
  return json.loads(done.stdout.splitlines()[-1])


if __name__ == '__main__':
  command_line.run(main)

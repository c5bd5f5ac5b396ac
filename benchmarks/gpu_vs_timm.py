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
  python -m benchmarks.gpu_vs_timm --device=cpu --nocompile --depth=1 \\
    --models=ViT-Ti/16 --image_size=32 --batch_size=8 --steps=2

`times` is the step time over that of the first contender. MFU counts the same
operations for both: those of the model as published.
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

flags.adopt_module_key_flags(report)
_MODELS = flags.DEFINE_list(
  'models', ['ViT-B/16', 'ViT-L/16'], 'Names of ViTs; timm has most of them.'
)
_CONTENDERS = flags.DEFINE_list(
  'contenders', ['ours', 'timm'], 'ours, timm or both.'
)
_OURS = flags.DEFINE_string(
  'ours', '', 'KEY=VALUE[,KEY=VALUE...] of the config, only for ours.'
)
_TABLE = flags.DEFINE_bool(
  'table',
  False,
  'Measure ViT-B/16 at batch 256 and ViT-L/16 at batch 128, in place of'
  ' --models and --batch_size, and print a Markdown table of them, too.',
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 128, 'Images a step.', 1)
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 224, 'Side in pixels.', 1)
_DEPTH = flags.DEFINE_integer(
  'depth', 0, "Blocks of the model; 0 means the model's own depth.", 0
)
_DEVICE = flags.DEFINE_enum(
  'device', 'cuda', ['cuda', 'cpu'], 'The first GPU, or the CPU for a test.'
)
_COMPILE = flags.DEFINE_bool('compile', True, 'Whether torch compiles.')
_TORCH_PYTHON = flags.DEFINE_string(
  'torch_python', sys.executable, 'The interpreter that has torch and timm.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 2, 'Processes per contender.', 1)
_STEPS = flags.DEFINE_integer('steps', 20, 'Steps of a measurement.', 1)
_TASK = (_OURS, _IMAGE_SIZE, _DEPTH, _DEVICE, _COMPILE, _STEPS)

_COLUMNS = {
  'ms': ('step_ms.median', '.1f'),
  'spread': ('step_ms.spread', '.1%'),
  'images/s': ('images_per_sec', '.1f'),
  'MFU': ('mfu', '.1%'),
  'times': ('ratio', '.3f'),
  'compile s': ('compile_sec', '.1f'),
  'peak GiB': ('peak_gib', '.2f'),
}


def main():
  # This process only counts operations; the workers use the device.
  jax.config.update('jax_platforms', 'cpu')
  if unknown := [name for name in _CONTENDERS.value if name not in WORKERS]:
    raise ValueError(
      f'--contenders: {", ".join(unknown)} unknown; choose from'
      f' {", ".join(WORKERS)}.'
    )
  if 'timm' in _CONTENDERS.value:
    check_torch(_TORCH_PYTHON.value)
  pairs = dict.fromkeys(_MODELS.value, _BATCH_SIZE.value)
  pairs = _PAIRS if _TABLE.value else pairs
  results = {}
  for model, batch_size in pairs.items():
    results |= measure(model, batch_size)
  report.publish(
    'gpu_vs_timm',
    results,
    _COLUMNS,
    f'Training step at {_IMAGE_SIZE.value} px, bfloat16, batch'
    f' {", ".join(map(str, pairs.values()))}, on'
    f' {next(iter(results.values()))["device_kind"]}',
    batch_sizes=pairs,
  )
  if _TABLE.value:
    report.say(markdown(results, pairs))


def check_torch(python: str) -> None:
  """Raises ValueError unless an interpreter has torch and timm."""
  done = subprocess.run(
    [python, '-c', 'import timm, torch'], capture_output=True, text=True
  )
  if done.returncode:
    raise ValueError(
      f'{python} cannot import torch and timm:'
      f' {done.stderr.strip().splitlines()[-1]}. Install them (pip install -e'
      " '.[hf]'), name an interpreter that has them with --torch_python, or"
      ' leave timm out with --contenders=ours.'
    )


def measure(model: str, batch_size: int) -> dict[str, dict[str, Any]]:
  """Compares the contenders for one model.

  Returns:
    `MODEL CONTENDER` -> the figures of `report.of_steps`, and those of `work`
    but `seconds`.

  Raises:
    ValueError: a contender fails, or the numbers of parameters differ.
  """
  task = {
    'model': model,
    'batch_size': batch_size,
    **{flag.name: flag.value for flag in _TASK},
    'num_classes': 1000,
    'turns': 3,
    'warmup': 3,
  }
  depth = {'depth': _DEPTH.value} if _DEPTH.value else {}
  built = models.build(model, num_classes=task['num_classes'], **depth)
  macs = accounting.forward_macs(built, _IMAGE_SIZE.value)
  with tempfile.TemporaryDirectory() as cache:
    samples = stopwatch.take_turns(
      {
        f'{model} {name}': functools.partial(
          work, task | {'contender': name}, cache
        )
        for name in _CONTENDERS.value
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


def work(task: Mapping[str, Any], cache: str) -> dict[str, Any]:
  """Runs one contender in a new process.

  Args:
    task: see `jax_worker.main` and `timm_worker.main`.
    cache: folder for the compilation caches of JAX and torch.

  Returns:
    `seconds` (a list of step times), `params`, `compile_sec`, `peak_gib`,
    `device_kind`, `versions`.

  Raises:
    ValueError: the process failed.
  """
  contender = task['contender']
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


def markdown(
  results: Mapping[str, Mapping[str, Any]], pairs: Mapping[str, int]
) -> str:
  """Returns a Markdown table with a row for each model.

  Args:
    results: `MODEL CONTENDER` -> its figures.
    pairs: model -> batch size.

  Returns:
    A column for each contender. The last column is the first one's speed over
    the last one's.
  """
  contenders = _CONTENDERS.value
  first, last = contenders[0], contenders[-1]
  rows = [
    ['model, batch', *contenders, f'{first} / {last}'],
    ['---'] * (len(contenders) + 2),
  ]
  for model, batch_size in pairs.items():
    found = [results[f'{model} {name}'] for name in contenders]
    ratio = found[0]['images_per_sec'] / found[-1]['images_per_sec']
    cells = [f'{model}, {batch_size}', *map(_cell, found), f'{ratio:.2f}']
    rows.append(cells)
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def _cell(found: Mapping[str, Any]) -> str:
  text = f'{found["images_per_sec"]:,.0f} images/s'
  text += f', {found["step_ms"]["median"]:.1f} ms'
  text += f', MFU {found["mfu"]:.2f}' if found['mfu'] else ''
  return text + (f', {found["peak_gib"]:.1f} GiB' if found['peak_gib'] else '')


if __name__ == '__main__':
  command_line.run(main)

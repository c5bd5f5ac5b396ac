"""Compares with timm; each contender runs in its own process."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measure import peaks, timing
from vit_jax import accounting, models

CONTENDERS = ('ours', 'plain', 'timm')
_ROOT = pathlib.Path(__file__).parents[2]


def work(
  contender: str,
  task: Mapping[str, Any],
  *,
  torch_python: str,
  cache: str,
) -> dict[str, Any]:
  """Runs one contender in a new process.

  Args:
    contender: one of CONTENDERS.
    task: see `jax_worker.main` and `timm_worker.main`.
    torch_python: the interpreter for timm.
    cache: folder for the compilation caches of JAX and torch.

  Returns:
    `seconds` (a list of step times), `params`, `compile_sec`, `peak_gib`,
    `device_kind`, `versions`.

  Raises:
    ValueError: the process failed.
  """
  python = torch_python if contender == 'timm' else sys.executable
  worker = 'timm_worker' if contender == 'timm' else 'jax_worker'
  environment = os.environ | {
    'CUDA_VISIBLE_DEVICES': (
      os.environ.get('CUDA_VISIBLE_DEVICES', '0').split(',')[0]
    ),
    'JAX_PLATFORMS': task['device'],
    'JAX_COMPILATION_CACHE_DIR': f'{cache}/jax',
    'TORCHINDUCTOR_CACHE_DIR': f'{cache}/torch',
  }
  command = [python, '-m', f'benchmarks.measure.{worker}']
  done = subprocess.run(
    [*command, json.dumps({'contender': contender, **task})],
    cwd=_ROOT,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    last = '\n'.join((done.stdout + done.stderr).splitlines()[-15:])
    raise ValueError(
      f'{contender} failed with exit code {done.returncode}:\n{last}'
    )
  return json.loads(done.stdout.splitlines()[-1])


def check_torch(python: str) -> None:
  """Raises ValueError unless an interpreter has torch and timm."""
  try:
    done = subprocess.run(
      [python, '-c', 'import timm, torch'],
      capture_output=True,
      text=True,
      check=False,
    )
  except OSError as error:
    raise ValueError(
      f'--torch_python={python} cannot be started: {error}.'
    ) from error
  if done.returncode:
    raise ValueError(
      f'{python} cannot import torch and timm:'
      f' {done.stderr.strip().splitlines()[-1]}. Install them (pip install -e'
      " '.[hf]'), name an interpreter that has them with --torch_python, or"
      ' leave timm out with --contenders=ours,plain.'
    )


def measure(
  model: str,
  contenders: Sequence[str],
  task: Mapping[str, Any],
  *,
  rounds: int,
  torch_python: str,
  peak_tflops: float | None = None,
) -> dict[str, dict]:
  """Compares the contenders for one model.

  Args:
    model: its name.
    contenders: a part of CONTENDERS; ratios are to the first.
    task: the settings that all share, without the model.
    rounds: processes per contender.
    torch_python: the interpreter for timm.
    peak_tflops: the device's peak, if its name is not known.

  Returns:
    Contender -> `step_ms` (see `timing.statistics`), `images_per_sec`, `mfu`,
    `params`, `compile_sec`, `peak_gib`, `device_kind`, `versions`, and the
    ratios of `timing.compare`.

  Raises:
    ValueError: a contender is unknown or fails, or the numbers of parameters
      differ.
  """
  if unknown := [name for name in contenders if name not in CONTENDERS]:
    raise ValueError(
      f'--contenders: {", ".join(unknown)} unknown; choose from'
      f' {", ".join(CONTENDERS)}.'
    )
  overrides = {'depth': task['depth']} if task['depth'] else {}
  if 'timm' in contenders:
    check_torch(torch_python)
  built = models.build(model, num_classes=task['num_classes'], **overrides)
  size = (task['image_size'],) * 2
  macs = accounting.forward_macs(built, size)

  def turn(name):
    timing.say(f'{model}: {name} ...')
    return work(
      name, {'model': model, **task}, torch_python=torch_python, cache=cache
    )

  with tempfile.TemporaryDirectory() as cache:
    samples = timing.interleave(
      {name: lambda name=name: turn(name) for name in contenders}, rounds
    )
  params = {name: found[0]['params'] for name, found in samples.items()}
  if len(set(params.values())) > 1:
    raise ValueError(f'{model} differs in its number of parameters: {params}.')
  seconds = {
    name: [value for sample in found for value in sample['seconds']]
    for name, found in samples.items()
  }
  results = {}
  for name, compared in timing.compare(seconds).items():
    # Later processes read the first one's compilation cache.
    first = samples[name][0]
    rate = task['batch_size'] / compared['median']
    peak = peak_tflops or peaks.tflops(first['device_kind'])
    results[name] = {
      'step_ms': timing.statistics([1000 * value for value in seconds[name]]),
      'images_per_sec': rate,
      'mfu': peaks.mfu(rate, macs, 1, peak),
      **{k: v for k, v in first.items() if k != 'seconds'},
      **{k: v for k, v in compared.items() if 'ratio' in k},
    }
  return results


def markdown(
  results: Mapping[str, Mapping[str, Any]],
  pairs: Mapping[str, int],
  contenders: Sequence[str],
) -> str:
  """Returns a Markdown table with a row for each model.

  Args:
    results: `MODEL CONTENDER` -> the figures of `measure`.
    pairs: model -> batch size.
    contenders: the columns. The last column is the first one's speed over the
      last one's.
  """
  first, last = contenders[0], contenders[-1]
  rows = [
    ['model, batch', *contenders, f'{first} / {last}'],
    ['---'] * (len(contenders) + 2),
  ]
  for model, batch_size in pairs.items():
    found = {name: results[f'{model} {name}'] for name in contenders}
    speeds = {name: x['images_per_sec'] for name, x in found.items()}
    rows.append(
      [
        f'{model}, {batch_size}',
        *(_cell(x) for x in found.values()),
        f'{speeds[first] / speeds[last]:.2f}',
      ]
    )
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def _cell(found: Mapping[str, Any]) -> str:
  parts = [
    f'{found["images_per_sec"]:,.0f} images/s',
    f'{found["step_ms"]["median"]:.1f} ms',
  ]
  if found['mfu'] is not None:
    parts.append(f'MFU {found["mfu"]:.2f}')
  if found['peak_gib'] is not None:
    parts.append(f'{found["peak_gib"]:.1f} GiB')
  return ', '.join(parts)

"""Numbers for claims that are read from the weights of finished runs.

They are kept in WORKDIR/measured, each run's with the time of its end, so that
they outlive the weights. As for pictures, another process reads the weights, on
the CPU.
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any

from vit_jax.paper import pictures
from vit_jax.paper.runs import Pretraining, Results
from vit_jax.runtime import json_text
from vit_jax.workdir import files

FILE = 'measured/weights.json'
# Increase it with every change of what `measuring` computes.
VERSION = 1
_COMMAND = (sys.executable, '-m', 'vit_jax.paper.pictures.measure_weights')


def measure(
  wanted: Mapping[Pretraining, Collection[str]],
  results: Results,
  folder: pathlib.Path,
) -> tuple[dict[str, dict[str, float]], list[str]]:
  """Returns the numbers of finished runs; measures what is not known yet.

  Args:
    wanted: pre-training -> keys of `measuring.KINDS`.
    results: knows the runs.
    folder: WORKDIR.

  Returns:
    Name of a pre-training -> kind -> number; and a line for each run whose
    weights could not be read.
  """
  path = folder / FILE
  known = _read(path)
  found, missing = {}, {}
  for start, kinds in wanted.items():
    workdir = results.folder(start)
    if workdir is None:
      continue
    ended = [VERSION, pictures.ended(workdir)]
    kept = known.get(start.name, {})
    numbers = kept.get('numbers', {}) if kept.get('ended') == ended else {}
    found[start.name] = numbers
    lacking = sorted({*kinds} - {*numbers})
    if lacking:
      missing[start.name] = {
        'workdir': os.fspath(workdir),
        'kinds': lacking,
        'ended': ended,
      }
  if not missing:
    return found, []
  done = subprocess.run(
    _COMMAND,
    input=json.dumps(missing),
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
  )
  *_, last = done.stdout.strip().splitlines() or ['no output']
  if done.returncode:
    names = ', '.join(missing)
    return found, [
      f'The weights of {names} could not be read (exit code'
      f' {done.returncode}): {last}'
    ]
  failures = []
  for name, measured in json_text.loads(last).items():
    found[name] = {**found[name], **measured['numbers']}
    known[name] = {'ended': missing[name]['ended'], 'numbers': found[name]}
    failures += [f'{name}: {why}' for why in measured['failures']]
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(known, indent=1) + '\n')
  return found, failures


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Returns what is kept; nothing if a killed process cut the file off."""
  try:
    return json_text.loads(path.read_text())
  except (FileNotFoundError, json.JSONDecodeError):
    return {}

"""Evaluates weights once, by `vit_jax.main --eval_only` in its own process.

The work directory of an evaluation keeps its result. The directory's name says
what the result is of, so other weights or other data have another one.
"""

import hashlib
import importlib.resources
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import cv2
import numpy as np
from etils import epath

from vit_jax import results as results_lib


def result(folder: pathlib.Path, name: str, of: Any) -> dict[str, float]:
  """Returns the metrics of an evaluation; none while it is not finished.

  Args:
    folder: of all evaluations.
    name: of this one, for people.
    of: all that its result depends on, as JSON.
  """
  found = results_lib.final_metrics(_workdir(folder, name, of))
  return found if any(key.endswith('/accuracy') for key in found) else {}


def _workdir(folder: pathlib.Path, name: str, of: Any) -> pathlib.Path:
  digest = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:8]
  return folder / f'{name},{digest}'


def evaluate(
  folder: pathlib.Path,
  name: str,
  of: Any,
  argument: str,
  checkpoint: epath.PathLike,
  *more: str,
) -> str:
  """Evaluates weights on a set of images.

  Args:
    folder: as for `result`, like the next two.
    name: of the evaluation.
    of: all that its result depends on.
    argument: of configs/robustness.py.
    checkpoint: the weights, of ImageNet's 1,000 classes.
    *more: further flags of vit_jax.main.

  Returns:
    Why it failed; '' if it did not.
  """
  workdir = _workdir(folder, name, of)
  folder.mkdir(parents=True, exist_ok=True)
  log = workdir.with_name(f'{workdir.name}.log')
  print(f'{name}: see {log}', flush=True)
  words = [
    *('vit_jax.main', '--eval_only', f'--workdir={workdir}'),
    # An earlier try may have had the data elsewhere.
    *(f'--config=configs/robustness.py:{argument}', '--allow_config_change'),
    # All 1,000 classes, also where the images are of fewer.
    f'--config.data.dataset={_class_data(folder / "classes")}',
    f'--config.init.checkpoint={os.fspath(checkpoint)}',
    f'--compilation_cache={folder / "compilation_cache"}',
    *more,
  ]
  with log.open('wb') as file:
    code = subprocess.run(
      [sys.executable, '-m', *words],
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=subprocess.STDOUT,
      check=False,
    ).returncode
  if not code:
    return ''
  lines = log.read_text(errors='replace').strip().splitlines() or ['']
  errors = [line for line in lines if line.startswith(('error:', 'ended:'))]
  return f'{name} was not evaluated (exit code {code}): {(errors or lines)[-1]}'


def class_names() -> list[str]:
  """Returns ImageNet's 1,000 WordNet ids in the order of the logits."""
  path = importlib.resources.files('tensorflow_datasets')
  return (path / 'datasets/imagenet2012/labels.txt').read_text().split()


def _class_data(folder: pathlib.Path) -> str:
  """Writes a data set whose only purpose is to name ImageNet's classes.

  Returns:
    Its data spec.
  """
  names = class_names()
  for name in names:
    (folder / name).mkdir(parents=True, exist_ok=True)
  _, image = cv2.imencode('.png', np.zeros((8, 8, 3), np.uint8))
  (folder / names[0] / '0.png').write_bytes(image.tobytes())
  return f'classes:{folder}'

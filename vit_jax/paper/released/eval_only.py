"""Evaluates weights once, by `vit_jax.main --eval_only` in its own process.

A JSON file keeps the results: set of images -> the metrics, and what they are
of, such as these weights and data. Whoever asks says what that is.
"""

import hashlib
import importlib.resources
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from etils import epath

from vit_jax import results as results_lib
from vit_jax.runtime import json_text
from vit_jax.workdir import files as workdir_files


def read(kept: pathlib.Path) -> dict[str, Any]:
  """Returns set -> `of` and `result`; none without a file."""
  return json_text.loads(workdir_files.content(kept) or b'{}')


def results(
  kept: pathlib.Path, identities: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
  """Returns set -> kept metrics, as far as they are of the same.

  Args:
    kept: the file.
    identities: set -> all that its result depends on, as JSON has it.
  """
  return {
    which: found['result']
    for which, found in read(kept).items()
    if which in identities and found['of'] == identities[which]
  }


def evaluate(
  label: str,
  kept: pathlib.Path,
  wanted: Mapping[str, Any],
  words: Sequence[str],
  metrics: Sequence[str],
) -> str:
  """Evaluates weights on sets of images and keeps the results.

  An interrupted evaluation goes on after the last finished set.

  Args:
    label: of the weights, for people.
    kept: the file of the results; logs and work directories are beside it.
    wanted: set -> all that its result depends on, as JSON has it.
    words: see `command`.
    metrics: what to keep of each set, such as `accuracy`.

  Returns:
    Why it failed; '' if it did not.
  """
  # Other weights, other data or other keys get another work directory.
  digest = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:8]
  workdir = kept.with_name(f'{kept.stem},{digest}')
  log = kept.with_name(f'{kept.stem}.log')
  kept.parent.mkdir(parents=True, exist_ok=True)
  print(f'{label}: {" and ".join(wanted)}, see {log}', flush=True)
  with log.open('wb') as file:
    code = subprocess.run(
      [sys.executable, '-m', *words, f'--workdir={workdir}'],
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=subprocess.STDOUT,
      check=False,
    ).returncode
  if code:
    return f'{label} was not evaluated (exit code {code}): {_why(log)}'
  found = results_lib.final_metrics(workdir)
  new = {
    which: {
      'of': identity,
      'result': {metric: found[f'{which}/{metric}'] for metric in metrics},
    }
    for which, identity in wanted.items()
  }
  with workdir_files.atomic(kept) as temporary:
    temporary.write_text(json.dumps(read(kept) | new, indent=1) + '\n')
  return ''


def _why(log: pathlib.Path) -> str:
  """Returns the last error of a log, or else its last line."""
  lines = log.read_text(errors='replace').strip().splitlines() or ['']
  errors = [line for line in lines if line.startswith(('error:', 'ended:'))]
  return (errors or lines)[-1]


def command(
  argument: str,
  checkpoint: epath.PathLike,
  folder: pathlib.Path,
  *more: str,
) -> list[str]:
  """Returns the module and the flags that evaluate weights, but --workdir.

  Args:
    argument: of configs/robustness.py.
    checkpoint: the weights, of ImageNet's 1,000 classes.
    folder: for files that all evaluations share.
    *more: further flags.
  """
  return [
    *('vit_jax.main', '--eval_only'),
    f'--config=configs/robustness.py:{argument}',
    # All 1,000 classes, also where the images are of fewer.
    f'--config.data.dataset={_class_data(folder / "classes")}',
    f'--config.init.checkpoint={os.fspath(checkpoint)}',
    *more,
    f'--compilation_cache={folder / "compilation_cache"}',
  ]


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

"""Accuracies of released files on ImageNet and ImageNet-ReaL.

Each file is evaluated once, by `vit_jax.main --eval_only` in a process of its
own. FOLDER/evaluations/FILE.json keeps the results, each with what it is of:
the file's size and time, the data, and the config keys that were set.
"""

import dataclasses
import hashlib
import importlib.resources
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.configs import finetune
from vit_jax.interop import catalog
from vit_jax.paper.released import files
from vit_jax.runtime import json_text
from vit_jax.sweep import state
from vit_jax.workdir import files as workdir_files

# Sets of configs/robustness.py.
VALIDATION, REAL = 'validation', 'real'
IMAGENET = 'tfds:imagenet2012'
# A set with fewer images is not whole. Of the 50,000 images, those without a
# label do not count in ImageNet-ReaL.
WHOLE = {VALIDATION: 50_000, REAL: 40_000}
# The names of splits to evaluate on, in the order of preference.
_SPLITS = ('validation', 'val', 'test')
_FOLDER = 'evaluations'


@dataclasses.dataclass(frozen=True)
class Images:
  """The images to evaluate on and to show.

  Attributes:
    spec: data spec of the copy of ImageNet, or of other photographs.
    split: of it.
    data_dir: folder of TFDS's data; '' is the default.
    missing: sets that cannot be evaluated, and why.
    to_show: whether there are images for pictures.
  """

  spec: str
  split: str
  data_dir: str
  missing: Mapping[str, str]
  to_show: bool


def find_images(spec: str, keys: Sequence[str]) -> Images:
  """Finds out what can be evaluated and shown.

  Args:
    spec: data spec of a copy of ImageNet. Its classes must be WordNet ids, but
      it may lack classes. Other photographs can be shown, not evaluated. '':
      TFDS's copy, if there is one.
    keys: config keys to set, KEY=VALUE.

  Raises:
    ValueError: `spec` cannot be read, or no split of it is for evaluation.
  """
  data_dir = dict(key.partition('=')[::2] for key in keys).get(
    'data.data_dir', ''
  )
  missing, split, to_show = {}, 'validation', True
  try:
    source = data.open_source(spec or IMAGENET, data_dir=data_dir or None)
  except ValueError as error:
    if spec:
      raise
    missing[VALIDATION] = _first_line(error)
    to_show = False
  else:
    split = _split(source.info)
    if unknown := sorted({*source.info.class_names} - {*class_names()}):
      missing[VALIDATION] = (
        f"{source.info.spec} has classes that are not ImageNet's WordNet ids,"
        f' such as {unknown[0]!r}.'
      )
  try:
    data.open_source(
      finetune.REAL['dataset'],
      data_dir=data_dir or None,
      label_key=finetune.REAL['label_key'],
    )
  except ValueError as error:
    missing[REAL] = _first_line(error)
  return Images(spec or IMAGENET, split, data_dir, missing, to_show)


def _first_line(error: ValueError) -> str:
  return str(error).splitlines()[0]


def _split(info: data.SourceInfo) -> str:
  found = [split for split in _SPLITS if split in info.splits]
  if not found and len(info.splits) > 1:
    raise ValueError(
      f'{info.spec} has the splits {", ".join(info.splits)}; expected one of'
      f' {", ".join(_SPLITS)}, or a single split.'
    )
  return found[0] if found else next(iter(info.splits))


def class_names() -> list[str]:
  """Returns ImageNet's 1,000 WordNet ids in the order of the logits."""
  path = importlib.resources.files('tensorflow_datasets')
  return (path / 'datasets/imagenet2012/labels.txt').read_text().split()


def results(
  name: str,
  path: epath.Path,
  images: Images,
  keys: Sequence[str],
  folder: pathlib.Path,
) -> dict[str, dict[str, float]]:
  """Returns the kept results of a file: set -> `accuracy` and `count`.

  Args:
    name: of the file in the catalogue.
    path: of the file.
    images: see `find_images`.
    keys: config keys to set, KEY=VALUE.
    folder: where results are kept.
  """
  return {
    which: kept['result']
    for which, kept in _read(_kept(name, folder)).items()
    if kept['of'] == _identity(which, path, images, keys)
  }


def evaluate(
  name: str,
  path: epath.Path,
  images: Images,
  keys: Sequence[str],
  folder: pathlib.Path,
) -> str:
  """Evaluates a file on the sets that are there and have no result yet.

  An interrupted evaluation goes on after the last finished set.

  Args:
    name: of the file in the catalogue. The others are as for `results`.

  Returns:
    Why it failed; '' if it did not, or if there was nothing to do.
  """
  known = results(name, path, images, keys, folder)
  wanted = {
    which: _identity(which, path, images, keys)
    for which in WHOLE
    if which not in known and which not in images.missing
  }
  if not wanted:
    return ''
  # Another file, other data or other keys get another work directory.
  digest = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:8]
  kept = _kept(name, folder)
  workdir = kept.with_name(f'{kept.stem},{digest}')
  log = kept.with_name(f'{kept.stem}.log')
  kept.parent.mkdir(parents=True, exist_ok=True)
  words = command(name, path, list(wanted), images, keys, folder)
  print(f'{path.name}: {" and ".join(wanted)}, see {log}', flush=True)
  with log.open('wb') as file:
    code = subprocess.run(
      [sys.executable, '-m', *words, f'--workdir={workdir}'],
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=subprocess.STDOUT,
      check=False,
    ).returncode
  found = state.final_metrics(epath.Path(workdir)) or {}
  if code or not all(f'{which}/accuracy' in found for which in wanted):
    return f'{path.name} was not evaluated (exit code {code}): {_why(log)}'
  new = {
    which: {
      'of': identity,
      'result': {key: found[f'{which}/{key}'] for key in ('accuracy', 'count')},
    }
    for which, identity in wanted.items()
  }
  with workdir_files.atomic(kept) as temporary:
    temporary.write_text(json.dumps(_read(kept) | new, indent=1) + '\n')
  return ''


def _why(log: pathlib.Path) -> str:
  """Returns the last error of a log, or else its last line."""
  lines = log.read_text(errors='replace').strip().splitlines() or ['']
  errors = [line for line in lines if line.startswith(('error:', 'ended:'))]
  return (errors or lines)[-1]


def command(
  name: str,
  path: epath.Path,
  sets: Sequence[str],
  images: Images,
  keys: Sequence[str],
  folder: pathlib.Path,
) -> list[str]:
  """Returns the module and the flags that evaluate a file, but --workdir."""
  entry = catalog.entry(name)
  words = {
    # All 1,000 classes, also where the images are of fewer.
    'data.dataset': _class_data(folder / _FOLDER / 'classes'),
    'init.checkpoint': os.fspath(path),
  }
  if VALIDATION in sets:
    words |= {
      'evals.validation.dataset': images.spec,
      'evals.validation.split': images.split,
      'evals.validation.classes': 'names',
    }
  return [
    *('vit_jax.main', '--eval_only'),
    f'--config=configs/robustness.py:{entry.model},{"+".join(sets)}'
    f',resolution={entry.image_size}',
    *(f'--config.{key}={value}' for key, value in words.items()),
    *(f'--config.{key}' for key in keys if _is_for(key, sets)),
    f'--compilation_cache={folder / _FOLDER / "compilation_cache"}',
  ]


def _class_data(folder: pathlib.Path) -> str:
  """Writes a data set whose only purpose is to name ImageNet's classes.

  Returns:
    Its data spec.
  """
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'classes.txt').write_text('\n'.join(class_names()))
  _, image = cv2.imencode('.png', np.zeros((8, 8, 3), np.uint8))
  with tarfile.open(folder / 'train.tar', 'w') as archive:
    for suffix, content in (('cls', b'0'), ('png', image.tobytes())):
      member = tarfile.TarInfo(f'0.{suffix}')
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))
  return f'wds:{folder}'


def _identity(
  which: str, path: epath.Path, images: Images, keys: Sequence[str]
) -> dict[str, Any]:
  """Returns all that a result depends on, as JSON has it."""
  data_set = [finetune.REAL['dataset']]
  if which == VALIDATION:
    data_set = [images.spec, images.split]
  return {
    'file': files.version(path),
    'data': data_set,
    'set': sorted(
      key for key in keys if _is_for(key, [which]) and _changes_results(key)
    ),
  }


def _is_for(key: str, sets: Sequence[str]) -> bool:
  """Whether a set config key is not one of other sets only."""
  section, _, rest = key.partition('.')
  return section != 'evals' or rest.partition('.')[0] in sets


def _changes_results(key: str) -> bool:
  """Whether a set config key may change an accuracy."""
  name = key.partition('=')[0]
  is_free = name.startswith(config_lib.FREE_KEYS) or name.endswith('batch_size')
  # What evaluations do is free for a training run, not here.
  return not is_free or (
    name.startswith('evals.') and not name.endswith('.batch_size')
  )


def _kept(name: str, folder: pathlib.Path) -> pathlib.Path:
  return folder / _FOLDER / f'{name.rpartition("/")[2]}.json'


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Returns what is kept; nothing if a killed process cut the file off."""
  try:
    return json_text.loads(path.read_text())
  except (FileNotFoundError, json.JSONDecodeError):
    return {}

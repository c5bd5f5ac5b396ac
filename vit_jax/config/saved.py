"""Saves, reads and compares the config of a work directory, `config.json`."""

import json
from collections.abc import Mapping
from typing import Any

import ml_collections
from etils import epath

from vit_jax.config.keys import KEYS, LOCATED_DATASETS, default, is_located
from vit_jax.data import exclusion
from vit_jax.workdir import files

FILE = 'config.json'
_REMEDY = 'bring it back, or delete it to go on with the config that you pass'
_WITHOUT_JPEGS = ('digits', 'shapes')

# Keys that two launches of the same run may set differently, and the beginnings
# of names of such keys; see `check_same_run`. The first line has keys of older
# runs, which no longer exist.
FREE_KEYS = (
  *('data.uneven_classes', 'init.max_inflation'),
  *('evals.', *(name for name, key in KEYS.items() if key.free)),
)


def flatten(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested sections to `{'data.batch_size': 4096, ...}`."""
  flat = {}
  for key, value in config.items():
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      flat |= flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def to_json(config: ml_collections.ConfigDict) -> str:
  """Returns a whole config as JSON."""
  return json.dumps(config.to_dict(), indent=2)


def save(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> None:
  """Writes the resolved config as `config.json`."""
  with files.atomic(epath.Path(workdir) / FILE) as path:
    path.write_text(to_json(config) + '\n')


def load(workdir: epath.PathLike | None) -> dict[str, Any] | None:
  """Returns the `config.json` of a work directory; None if there is none.

  Raises:
    ValueError: the file is damaged.
  """
  if workdir is None or not (path := epath.Path(workdir) / FILE).exists():
    return None
  content = files.read_object(path, _REMEDY)
  sections = {
    key: content[key]
    for key, value in default().items()
    if isinstance(value, ml_collections.ConfigDict) and key in content
  }
  if isinstance(sections.get('evals'), dict):
    sections |= {f'evals.{k}': v for k, v in sections['evals'].items()}
  for key, value in sections.items():
    if not isinstance(value, dict):
      shown = repr(value)[:40]
      raise ValueError(
        f'{path} is damaged ({key} is {shown}, no section): {_REMEDY}.'
      )
  return content


def check_same_run(
  config: ml_collections.ConfigDict, workdir: epath.PathLike
) -> None:
  """Refuses a work directory whose run has another config.

  Raises:
    ValueError: keys differ; lists them with both values. `FREE_KEYS`, which
      don't change what is computed, may differ. So may the path of a data set,
      but not its size.
  """
  saved = load(workdir)
  if saved is None:
    return
  old = flatten(saved)
  new = flatten(json.loads(json.dumps(config.to_dict())))
  # A run that is older than a key did what the key's default does.
  defaults = flatten(json.loads(json.dumps(default().to_dict())))
  # The exceptions: older runs decoded JPEGs accurately, and ignored EXIF
  # orientation.
  if str(old.get('data.dataset')).partition(':')[0] not in _WITHOUT_JPEGS:
    old.setdefault('data.jpeg_dct', 'accurate')
  for flat, missing in ((old, False), (new, None)):
    if flat.get('data.exif_orientation', missing) is None:
      flat['data.exif_orientation'] = is_located(flat.get('data.dataset'))
    else:
      flat.setdefault('data.exif_orientation', missing)
  differing = [
    f'  {key}: {old.get(key, "(absent)")!r} in {FILE},'
    f' {new.get(key, "(absent)")!r} now'
    for key in sorted(old.keys() | new.keys())
    if old.get(key, defaults.get(key)) != new.get(key)
    and not key.startswith(FREE_KEYS)
    and not (key == 'data.dataset' and _same_kind(old[key], new[key]))
  ]
  if differing:
    raise ValueError(
      f'{workdir} holds a run with another config:\n'
      + '\n'.join(differing)
      + '\nUse another --workdir, or pass --allow_config_change to go on'
      ' with the new values.'
    )


def _same_kind(old: str, new: str) -> bool:
  """Whether two data specs may be one data set that was moved.

  A list of exclusions may move too. Whether it still excludes the same examples
  is in `data.digest`.
  """
  (old, old_list), (new, new_list) = map(exclusion.split, (old, new))
  if bool(old_list) != bool(new_list):
    return False
  kinds = {
    spec.partition(':')[0].replace('classes', 'folder') for spec in (old, new)
  }
  moved = len(kinds) == 1 and kinds <= set(LOCATED_DATASETS)
  return moved or old == new

"""Saves, reads and compares the config of a work directory, `config.json`."""

import json
from typing import Any

import ml_collections
from absl import logging
from etils import epath
from flax import traverse_util

from vit_jax.config.keys import FREE_KEYS, KEYS, default, flatten
from vit_jax.config.sections import SECTIONS
from vit_jax.runtime import json_text
from vit_jax.workdir import files

FILE = 'config.json'
_REMEDY = 'bring it back, or delete it to go on with the config that you pass'
# Kinds of data specs that name a location after the colon.
_LOCATED = ('folder', 'classes', 'arrayrecord')
# Free keys that change rounding, or what a step does in a rare case.
_BITS = (
  *('mesh.shard', 'mesh.gather', 'mesh.partition', 'mesh.reduce_dtype'),
  *('model.attention_implementation', 'guard.nonfinite'),
)
# An optimizer's name in older runs -> its name now, and those of its keys.
_RENAMED = {
  'adam': (
    'adamw',
    {'beta1': 'b1', 'beta2': 'b2', 'moment_dtype': 'mu_dtype'},
  ),
  'sgd': ('sgd', {'moment_dtype': 'accumulator_dtype'}),
}


def to_json(config: ml_collections.ConfigDict) -> str:
  """Returns a whole config as JSON."""
  return json.dumps(config.to_dict(), indent=2)


def save(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> None:
  """Writes the complete config as `config.json`."""
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
  # A file of another program, which may have this name too.
  if not isinstance(content.get('data'), dict):
    return content
  # A run that is older than a key did what the key's default does.
  usual = flatten(json.loads(to_json(default())))
  usual = {name: usual[name] for name in KEYS}
  section = content.get('optimizer', {})
  if section.get('name') in _RENAMED:
    name, keys = _RENAMED[section['name']]
    section = {keys.get(key, key): value for key, value in section.items()}
    content |= {'optimizer': section | {'name': name}}
  for parent, choices in SECTIONS.items():
    table = choices.get(content.get(parent, {}).get('name'), {})
    usual |= {
      f'{parent}.{name}': None if isinstance(key.default, type) else key.default
      for name, key in table.items()
    }
  flat = traverse_util.flatten_dict(content, keep_empty_nodes=True, sep='.')
  return traverse_util.unflatten_dict(usual | flat, sep='.')


def check_same_run(
  config: ml_collections.ConfigDict, workdir: epath.PathLike
) -> None:
  """Refuses a work directory whose run has another config.

  Raises:
    ValueError: keys differ; lists them with both values. `FREE_KEYS`, which
      don't change what is computed, may differ. So may the place of the data:
      `data_record` compares the data themselves. Saved keys that no longer
      exist only make a warning.
  """
  saved = load(workdir)
  if saved is None:
    return
  old = flatten(saved)
  new = flatten(json.loads(to_json(config)))
  differing = [
    f'  {key}: {old.get(key, "(absent)")!r} in {FILE}, {new[key]!r} now'
    for key in sorted(new)
    if old.get(key) != new[key]
    and not key.startswith(FREE_KEYS)
    and key != 'data.dataset'
  ]
  if differing:
    raise ValueError(
      f'{workdir} holds a run with another config:\n'
      + '\n'.join(differing)
      + '\nUse another --workdir, or pass --allow_config_change to go on'
      ' with the new values.'
    )
  gone = {
    key: value
    for key, value in old.items()
    if value and key not in new and not key.startswith(FREE_KEYS)
  }
  if gone:
    logging.warning('%s has keys that are gone and do nothing: %s', FILE, gone)


def digest(config: ml_collections.ConfigDict) -> str:
  """Returns a digest of the keys on which the bits of a state depend.

  Of the mesh, the sizes are left out. They may say -1, and the record of a
  launch has them.
  """
  flat = flatten(json.loads(to_json(config)))
  kept = {
    key: value
    for key, value in flat.items()
    if key.startswith(_BITS)
    or not (key.startswith(FREE_KEYS) or key == 'data.dataset')
  }
  return json_text.checksum(kept)[:16]


def is_located(dataset: str | None) -> bool:
  """Whether a data spec names files of the user's by their place."""
  return (dataset or '').partition(':')[0] in _LOCATED

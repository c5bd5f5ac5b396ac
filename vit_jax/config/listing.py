"""Lists the keys of a config: their values, where these come from, and why."""

import itertools
import textwrap
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import ml_collections

from vit_jax.config import keys
from vit_jax.config.derived import resolve_without_data
from vit_jax.config.saved import flatten

_WIDTH = 80
_NONE = object()  # A key without a default.


class Entry(NamedTuple):
  """One key of a config.

  Attributes:
    stage: the name of the stage; '' outside of stages.
    key: with its sections, without the stage: `data.batch_size`.
    value: resolved, as far as this needs no data.
    source: who set it: 'default', 'config file', 'command line', or 'filled in'
      with the value that it replaces.
    meaning: what the key means.
  """

  stage: str
  key: str
  value: Any
  source: str
  meaning: str

  @property
  def path(self) -> str:
    """The key as the command line has it after `--config.`."""
    return f'stages.{self.stage}.{self.key}' if self.stage else self.key


def entries(
  config: ml_collections.ConfigDict, overridden: Collection[str] = ()
) -> list[Entry]:
  """Returns the keys of a config, in its order.

  Args:
    config: not resolved; not changed. It may have stages, whose keys then stand
      side by side.
    overridden: the keys that the command line sets.
  """
  if 'stages' not in config:
    return _entries(config, '', overridden)
  order = Entry(
    stage='',
    key='order',
    value=tuple(config.order),
    source='command line' if 'order' in overridden else 'config file',
    meaning='The stages, in the order in which they run.',
  )
  stages = [
    entry
    for name in config.order
    for entry in _entries(config.stages[name], name, overridden)
  ]
  places = {entry.key: i for i, entry in reversed(list(enumerate(stages)))}
  return [order, *sorted(stages, key=lambda entry: places[entry.key])]


def text(
  config: ml_collections.ConfigDict,
  overridden: Collection[str] = (),
  part: str = '',
) -> str:
  """Returns a list of all keys for a person to read.

  Args:
    config: see `entries`.
    overridden: see `entries`.
    part: lists only keys whose names contain it.

  Raises:
    ValueError: no key's name contains `part`.
  """
  every = entries(config, overridden)
  shown = [entry for entry in every if part in entry.path]
  if not shown:
    raise ValueError(
      f'no key of this config has {part!r} in its name; --print_config without'
      f' a name lists all {len(every)} keys.'
    )
  stages = len(config.stages) if 'stages' in config else 1
  lines, section = [], None
  for meaning, group in itertools.groupby(shown, lambda entry: entry.meaning):
    group = list(group)
    if section != group[0].key.partition('.')[0]:
      section = group[0].key.partition('.')[0]
      lines.append('')
    for _, same in itertools.groupby(group, lambda entry: entry.key):
      lines += _lines(list(same), stages)
    lines += textwrap.wrap(
      meaning,
      _WIDTH,
      initial_indent='    ',
      subsequent_indent='    ',
      break_on_hyphens=False,
    )
  head = (
    f'{len(shown)} of {len(every)} keys, each with its value, who set it, and'
    ' its meaning. Set a key with --config.KEY=VALUE.'
  )
  if stages > 1:
    head += ' A * stands for every stage: write its name.'
  return '\n'.join([textwrap.fill(head, _WIDTH), *lines])


def _lines(same: Sequence[Entry], stages: int) -> list[str]:
  """Returns a key's line; one for each stage if they have several values."""
  if len(same) == stages > 1:
    texts = {f'{_shown(entry.value)}  [{entry.source}]' for entry in same}
    if len(texts) == 1:
      return [f'stages.*.{same[0].key} = {texts.pop()}']
  return [
    f'{entry.path} = {_shown(entry.value)}  [{entry.source}]' for entry in same
  ]


def _entries(
  config: ml_collections.ConfigDict, stage: str, overridden: Collection[str]
) -> list[Entry]:
  given, usual = flatten(config), flatten(keys.default())
  resolved = flatten(resolve_without_data(config))
  found = []
  for name, value in resolved.items():
    parent = name.rpartition('.')[0]
    key = keys.find(name, config[parent] if parent else None)
    default = getattr(key, 'default', _NONE)
    if name.endswith(('.name', '.kind')):  # The kind of section was chosen.
      default = usual.get(name)
    source = 'config file'
    if f'stages.{stage}.{name}'.removeprefix('stages..') in overridden:
      source = 'command line'
    elif given[name] == (None if isinstance(default, type) else default):
      source = 'default'
    if value != given[name]:
      source = f'filled in; {source}: {_shown(given[name])}'
    meaning = key.doc if key else ''
    found.append(Entry(stage, name, value, source, meaning))
  return found


def _shown(value: Any) -> str:
  return 'unset' if value is None else repr(value)

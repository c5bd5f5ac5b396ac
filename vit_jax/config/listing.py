"""Lists the keys of a config: their values, where these come from, and why."""

import re
import textwrap
from collections.abc import Collection
from typing import Any, NamedTuple

import ml_collections

from vit_jax.config import keys
from vit_jax.config.completion import fill_in

_WIDTH = 80


class Entry(NamedTuple):
  """One key of a config.

  Attributes:
    path: the key as the command line has it after `--config.`.
    value: filled in, as far as this needs no data.
    source: who set it: 'default', 'config file', 'command line', or 'filled in'
      with the value that it replaces.
    meaning: what the key means.
  """

  path: str
  value: Any
  source: str
  meaning: str


def entries(
  config: ml_collections.ConfigDict, overridden: Collection[str] = ()
) -> list[Entry]:
  """Returns the keys of a config, in its order.

  Args:
    config: as the user gave it; not changed. It may have stages.
    overridden: the keys that the command line sets.
  """
  found, parts = [], {'': config}
  if 'stages' in config:
    source = 'command line' if 'order' in overridden else 'config file'
    meaning = 'The stages, in the order in which they run.'
    found = [Entry('order', tuple(config.order), source, meaning)]
    parts = {f'stages.{name}.': config.stages[name] for name in config.order}
  usual = keys.flatten(keys.default())
  for prefix, part in parts.items():
    derived = part.copy_and_resolve_references()
    fill_in(derived)
    given = keys.flatten(part)
    table = keys.table(part)
    for name, value in keys.flatten(derived).items():
      key = table.get(name)
      default = usual.get(name)
      # The kind of a section was chosen, whatever its own table says.
      if key and not name.endswith(('.name', '.kind')):
        default = None if isinstance(key.default, type) else key.default
      source = 'default' if given[name] == default else 'config file'
      if prefix + name in overridden:
        source = 'command line'
      if value != given[name]:
        source = f'filled in; {source}: {_shown(given[name])}'
      meaning = key.doc if key else ''
      if key and key.check:
        meaning += f' It must be {key.check.expected}.'
      found.append(Entry(prefix + name, value, source, meaning))
  return found


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
  lines, last = [], ''
  # The keys of stages stand side by side.
  groups = {}
  for entry in shown:
    key = re.sub(r'^stages\.[^.]*\.', '', entry.path)
    groups.setdefault((key, entry.meaning), []).append(entry)
  for (key, meaning), group in groups.items():
    section = key.partition('.')[0]
    lines += [''] * (section != last)
    last = section
    settings = [f'{_shown(entry.value)}  [{entry.source}]' for entry in group]
    if len(group) == stages > 1 and len(set(settings)) == 1:
      lines.append(f'stages.*.{key} = {settings[0]}')
    else:
      for entry, setting in zip(group, settings, strict=True):
        lines.append(f'{entry.path} = {setting}')
    indent = dict(initial_indent='    ', subsequent_indent='    ')
    lines += textwrap.wrap(meaning, _WIDTH, break_on_hyphens=False, **indent)
  head = (
    f'{len(shown)} of {len(every)} keys, each with its value, who set it, and'
    ' its meaning. Set a key with --config.KEY=VALUE.'
  )
  if stages > 1:
    head += ' A * stands for every stage: write its name.'
  return '\n'.join([textwrap.fill(head, _WIDTH), *lines])


def _shown(value: Any) -> str:
  return 'unset' if value is None else repr(value)

"""Writes a benchmark's results: a table for people and JSON for programs."""

import datetime
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import jax
from absl import flags
from etils import epath
from flax import traverse_util

from vit_jax.runtime import installed, text_table

JSON = flags.DEFINE_string(
  'json', '', 'File for the results as JSON; by default they go to stdout.'
)
# Environment variables that can change the measurements begin with these.
_PREFIXES = ('JAX_', 'LIBTPU_', 'OMP_', 'XLA_')


def say(text: str) -> None:
  """Prints to stderr, because stdout is for the JSON."""
  print(text, file=sys.stderr, flush=True)


def publish(
  benchmark: str,
  results: Mapping[str, Mapping[str, Any]],
  columns: Mapping[str, tuple[str, str]],
  title: str,
  *,
  devices: bool = True,
  **setting: Any,
) -> None:
  """Prints the table to stderr, and writes the JSON.

  Args:
    benchmark: the program's name.
    results: name -> figures, which may be nested.
    columns: see `table`.
    title: the line above the table.
    devices: whether to ask JAX for its devices, which then belong to this
      process.
    **setting: is written besides the flags, or in place of those.
  """
  say(f'\n{title}\n\n{table(results, columns)}\n')
  environment = {
    'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
    'commit': installed.commit(),
    'versions': installed.versions(),
    'cpus': os.cpu_count(),
    'load': os.getloadavg()[0],
    'variables': {
      k: v for k, v in os.environ.items() if k.startswith(_PREFIXES)
    },
  }
  if devices:
    environment |= {
      'platform': jax.default_backend(),
      'device_kind': jax.devices()[0].device_kind,
      'devices': jax.device_count(),
      'processes': jax.process_count(),
    }
  own = flags.FLAGS.get_flags_for_module(sys.argv[0])
  given = {flag.name: flag.value for flag in own if flag.name != 'version'}
  written = {
    'benchmark': benchmark,
    'setting': given | setting,
    'environment': environment,
    'results': results,
  }
  text = json.dumps(written)
  if JSON.value:
    path = epath.Path(JSON.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + '\n')
  else:
    print(text, flush=True)


def table(
  results: Mapping[str, Mapping[str, Any]],
  columns: Mapping[str, tuple[str, str]],
) -> str:
  """Returns a table with a row for each result.

  Args:
    results: see `publish`.
    columns: title -> (key of a figure, format such as '.3f'). The key of a
      nested figure is `outer.inner`. A cell without a figure stays blank; a
      column without any is left out.
  """
  flat = {
    name: traverse_util.flatten_dict(result, sep='.')
    for name, result in results.items()
  }
  shown = {
    title: (key, form)
    for title, (key, form) in columns.items()
    if any(result.get(key) is not None for result in flat.values())
  }
  rows = [['', *shown]]
  for name, result in flat.items():
    cells = [(result.get(key), form) for key, form in shown.values()]
    rows.append([name, *('' if x is None else format(x, f) for x, f in cells)])
  return text_table.aligned(rows)

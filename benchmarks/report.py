"""Writes a benchmark's results: a table for people and JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from etils import epath

from benchmarks.measure import timing

JSON = flags.DEFINE_string(
  'json', '', 'File for the results as JSON; by default they go to stdout.'
)


def publish(
  benchmark: str,
  results: Mapping[str, Any],
  columns: Mapping[str, tuple[str, str]],
  *,
  setting: Mapping[str, Any],
  title: str,
  environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
  """Prints the table to stderr, and writes the JSON.

  Args:
    benchmark: the program's name.
    results: name -> figures, which may be nested.
    columns: title -> (key of a figure, format such as '.3f'). The key of a
      nested figure is `outer.inner`. A cell without a figure stays blank; a
      column without any is left out.
    setting: the settings that all results share.
    title: the line above the table.
    environment: by default `timing.environment()`.

  Returns:
    The object that was written as JSON.
  """
  written = {
    'benchmark': benchmark,
    'setting': dict(setting),
    'environment': environment or timing.environment(),
    'results': dict(results),
  }
  timing.say(f'\n{title}\n\n{table(results, columns)}\n')
  text = json.dumps(written)
  if JSON.value:
    path = epath.Path(JSON.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + '\n')
  else:
    print(text, flush=True)
  return written


def table(
  results: Mapping[str, Mapping[str, Any]],
  columns: Mapping[str, tuple[str, str]],
) -> str:
  """Renders one row per result; see `publish`."""
  shown = {
    title: (key, form)
    for title, (key, form) in columns.items()
    if any(_find(result, key) is not None for result in results.values())
  }
  rows = [['', *shown]]
  for name, result in results.items():
    row = [name]
    for key, form in shown.values():
      value = _find(result, key)
      row.append('' if value is None else format(value, form))
    rows.append(row)
  return align(rows)


def align(rows: Sequence[Sequence[str]]) -> str:
  """Aligns the first column left, the others right."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.rjust(width) if i else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  )


def _find(result: Mapping[str, Any], key: str) -> Any:
  for name in key.split('.'):
    if not isinstance(result, Mapping) or name not in result:
      return None
    result = result[name]
  return result

"""The table of runs on a terminal: as wide as the terminal, and no wider."""

import os
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd

from vit_jax import config as config_lib
from vit_jax.runtime import printable

_CONFIG = 'config.'
# Keys that rarely explain a difference in results: the table leaves them out.
_UNINTERESTING = (*config_lib.FREE_KEYS, 'data.num_examples', 'data.max_pixels')
# Keys to tell of even if all runs have the same value, and to show first if
# they differ.
_INTERESTING = (
  *('model.name', 'data.dataset', 'data.train_split', 'schedule.peak'),
  *('optimizer.weight_decay', 'seed', 'total_steps', 'data.batch_size'),
  *('image_size', 'init.checkpoint', 'optimizer.name', 'schedule.name'),
)
# Columns of `frames.load_runs` that identify the run and its progress; they are
# not metrics.
_NOT_METRICS = ('run', 'finished', 'step')
_LONGEST = 20  # Characters of a config value; of a run's name 40% of the width.
_CUT = '..'


def choose(runs: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
  """Returns the metrics to show.

  Args:
    runs: see `frames.load_runs`.
    metrics: names that the user gives; [] stands for all accuracies but those
      of training batches.

  Raises:
    ValueError: a name in `metrics` is not a metric of any run.
  """
  known = [
    c for c in runs if not c.startswith(_CONFIG) and c not in _NOT_METRICS
  ]
  if unknown := [name for name in metrics if name not in known]:
    raise ValueError(f'no run has {unknown}; choose from {known}.')
  return list(metrics) or [
    c for c in known if c.endswith('/accuracy') and not c.startswith('train/')
  ]


def render(
  runs: pd.DataFrame,
  metrics: Sequence[str],
  width: int,
  *,
  all_metrics: bool = False,
) -> str:
  """Returns the table: the run, its progress, its metrics, what differs.

  What is equal in all runs, and the columns without room, are named in lines
  above and below.

  Args:
    runs: see `frames.load_runs`.
    metrics: columns of `runs`.
    width: characters in a line of the terminal.
    all_metrics: whether to show all metrics, even if they need more width; else
      the first is always shown.
  """
  names, folder = _names(list(runs['run']), max(width * 2 // 5, 16))
  cells = {'step': _steps(runs)} | {m: _metric(runs[m]) for m in metrics}
  least = len(cells) if all_metrics else min(2, len(cells))
  for key in _differing(runs):
    values = [_value(value) for value in runs[_CONFIG + key]]
    cells[key] = _shortened(values, _LONGEST)
  heads = [_header(name) for name in cells]
  widths = [
    1 + max(map(len, (*head, *(f' {cell}' for cell in column))))
    for head, column in zip(heads, cells.values(), strict=True)
  ]
  room = width - max(map(len, (*names, 'run')))
  fitting = max(least, int((np.cumsum(widths) <= room).sum()))
  frame = pd.DataFrame(cells, index=names).iloc[:, :fitting]
  frame.columns = pd.MultiIndex.from_tuples(heads[:fitting], names=['', 'run'])
  lines = [_heading(runs, folder, width)] if len(runs) > 1 else []
  for line in frame.to_string(sparsify=False).splitlines():
    lines += filter(None, [line.rstrip()])
  if left_out := list(cells)[fitting:]:
    note = (
      f'No room for {", ".join(left_out)}. --metric=NAME,NAME chooses metrics,'
      ' --csv=FILE writes all.'
    )
    lines += textwrap.wrap(note, width, break_on_hyphens=False)
  return printable.text('\n'.join(lines))


def _heading(runs: pd.DataFrame, folder: str, width: int) -> str:
  """Returns a line on what the runs have in common."""
  line = f'{len(runs)} runs' + f' in {folder}' * bool(folder)
  line += ', all finished' * bool(runs['finished'].all())
  same = [
    f'{key}={_shortened([value], _LONGEST)[0]}'
    for key in _INTERESTING
    if _CONFIG + key in runs
    and not _differs(runs, key)
    and (value := _value(runs[_CONFIG + key][0])) != '-'
  ]
  if not same:
    return f'{line}.'
  line += f'. The same in all: {", ".join(same)}'
  return textwrap.shorten(
    line, width, placeholder=' ...', break_on_hyphens=False
  )


def _differing(runs: pd.DataFrame) -> list[str]:
  """Returns the keys in which the runs differ, the most interesting first."""
  keys = [c.removeprefix(_CONFIG) for c in runs if c.startswith(_CONFIG)]
  found = [
    key
    for key in keys
    if not key.startswith(_UNINTERESTING) and _differs(runs, key)
  ]
  return sorted(found, key=lambda key: (*_INTERESTING, key).index(key))


def _differs(runs: pd.DataFrame, key: str) -> bool:
  return runs[_CONFIG + key].map(str).nunique() > 1


def _names(names: Sequence[str], longest: int) -> tuple[list[str], str]:
  """Returns shorter names of the runs, and the folder that all are in."""
  folder = ''
  if len(names) > 1:
    parts = [name.split('/')[:-1] for name in names]
    # Lists are compared item by item.
    same = os.path.commonprefix(parts)  # noqa: RUF071
    folder = ''.join(f'{part}/' for part in same)
  return _shortened([n.removeprefix(folder) for n in names], longest), folder


def _shortened(texts: Sequence[str], longest: int) -> list[str]:
  """Cuts long texts in the middle, unless two different ones become equal."""
  for end in (longest * 2 // 3, longest // 3):
    start = longest - end - len(_CUT)
    cut = [
      f'{t[:start]}{_CUT}{t[-end:]}' if len(t) > longest else t for t in texts
    ]
    if len(set(cut)) == len(set(texts)):
      return cut
  return list(texts)


def _header(name: str) -> tuple[str, str]:
  """Returns two lines: `schedule.` above `peak`, `test/` above `accuracy`."""
  section, mark, key = name.rpartition('/' if '/' in name else '.')
  return section + mark, key


def _metric(values: pd.Series) -> list[str]:
  return [
    '-' if pd.isna(v) else f'{v:.4f}' if abs(v) < 100 else f'{v:.6g}'
    for v in values
  ]


def _steps(runs: pd.DataFrame) -> list[str]:
  """Returns `500`, or `300/500` of a run that is not finished."""
  keys = ['finished', 'step', f'{_CONFIG}total_steps']
  texts = []
  for done, step, total in runs.reindex(columns=keys).itertuples(index=False):
    text = '0' if pd.isna(step) else f'{step:.0f}'
    if not done:
      text += f'/{"?" if pd.isna(total) else f"{total:.0f}"}'
    texts.append(text)
  return texts


def _value(value) -> str:
  if isinstance(value, float):
    return '-' if pd.isna(value) else f'{value:.6g}'
  return '-' if value in (None, '') else str(value)

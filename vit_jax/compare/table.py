"""The table of runs on a terminal: as wide as the terminal, and no wider."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence

import pandas as pd

from vit_jax import config as config_lib
from vit_jax.runtime import printable

_CONFIG = 'config.'
# Keys that rarely explain a difference in results: the table leaves them out.
_UNINTERESTING = (
  *('evals.', 'log.', 'checkpoint.', 'guard.', 'profile.'),
  *('data.data_dir', 'data.num_examples', 'data.threads', 'data.workers'),
  *('data.prefetch', 'data.max_pixels', 'data.uneven_classes'),
  'init.max_inflation',
)
# Keys to tell of even if all runs have the same value, and to show first if
# they differ.
_INTERESTING = (
  *('model.name', 'data.dataset', 'data.train_split', 'schedule.peak'),
  *('optimizer.weight_decay', 'seed', 'total_steps', 'data.batch_size'),
  *('image_size', 'init.checkpoint', 'optimizer.name', 'schedule.name'),
)
# Columns of `frames.load_runs` that identify the run and its progress; they are
# not metrics.
_NOT_METRICS = ('run', 'finished', 'step', 'excluded')
_LONGEST = 20  # Characters of a config value; of a run's name 40% of the width.
_GAP = '  '
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
  """Returns the table: the run, its metrics, its progress, what differs.

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
  first, steps = ['', 'run', *names], ['', 'step', *_steps(runs)]
  measured, more_metrics, room = _fitting(
    {name: _header(name) + _metric(runs[name]) for name in metrics},
    width - _width(first) - len(_GAP) - _width(steps),
    always=len(metrics) if all_metrics else 1,
  )
  keys = {}
  for key in _differing(runs):
    values = [_value(value) for value in runs[_CONFIG + key]]
    keys[key] = _header(key) + _shortened(values, _LONGEST)
  differing, more_keys, _ = _fitting(keys, room)
  columns = [first, *measured, steps, *differing]
  lines = [_heading(runs, folder, width)] if len(runs) > 1 else []
  rows = list(zip(*columns, strict=True))
  widths = [_width(column) for column in columns]
  for row in rows if any(rows[0]) else rows[1:]:
    cells = [row[0].ljust(widths[0])]
    cells += [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
    lines.append(_GAP.join(cells).rstrip())
  for what, left_out, remedy in (
    ('metrics', more_metrics, '--metric=NAME,NAME chooses some.'),
    ('keys that differ', more_keys, '--csv=FILE writes all.'),
  ):
    if left_out:
      note = f'No room for more {what}: {", ".join(left_out)}. {remedy}'
      lines += textwrap.wrap(note, width, break_on_hyphens=False)
  for note in _excluded(runs, names):
    lines += textwrap.wrap(note, width, break_on_hyphens=False)
  return printable.text('\n'.join(lines))


def _excluded(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
  """Returns sentences on what the data of runs leave out by lists."""
  by_note: dict[str, list[str]] = {}
  if 'excluded' in runs:
    for name, note in zip(names, runs['excluded'], strict=True):
      if not pd.isna(note):
        by_note.setdefault(note, []).append(name)
  return [
    f'{note}.' if len(of) == len(names) else f'{", ".join(of)}: {note}.'
    for note, of in by_note.items()
  ]


def _fitting(
  columns: Mapping[str, list[str]], room: int, always: int = 0
) -> tuple[list[list[str]], list[str], int]:
  """Chooses the columns that fit, and the first `always` in any case.

  Returns:
    These columns, the names of the others, and the room that is left.
  """
  shown, others = [], []
  for number, (name, column) in enumerate(columns.items()):
    needed = _width(column) + len(_GAP)
    if needed > room and number >= always:
      others.append(name)
    else:
      room -= needed
      shown.append(column)
  return shown, others, room


def _heading(runs: pd.DataFrame, folder: str, width: int) -> str:
  """Returns a line on what the runs have in common."""
  parts = [f'{len(runs)} runs']
  if folder:
    parts[0] += f' in {folder}'
  if runs['finished'].all():
    parts[0] += ', all finished'
  same = [
    f'{key}={_shortened([_value(runs[_CONFIG + key][0])], _LONGEST)[0]}'
    for key in _INTERESTING
    if _CONFIG + key in runs and not _differs(runs, key)
  ]
  line = f'{parts[0]}. The same in all: '
  shown = [part for part in same if not part.endswith('=-')]
  while shown and len(line) + len(', '.join(shown)) > width:
    shown.pop()
  return line + ', '.join(shown) if shown else f'{parts[0]}.'


def _differing(runs: pd.DataFrame) -> list[str]:
  """Returns the keys in which the runs differ, the most interesting first."""
  keys = [
    column.removeprefix(_CONFIG)
    for column in runs
    if column.startswith(_CONFIG)
  ]
  keys = [
    key
    for key in keys
    if not key.startswith(_UNINTERESTING) and _differs(runs, key)
  ]

  def interest(key):
    if key in _INTERESTING:
      return 0, _INTERESTING.index(key)
    # Those that do not change what is computed come last.
    return 1 + key.startswith(config_lib.FREE_KEYS), keys.index(key)

  return sorted(keys, key=interest)


def _differs(runs: pd.DataFrame, key: str) -> bool:
  return runs[_CONFIG + key].map(str).nunique() > 1


def _names(names: Sequence[str], longest: int) -> tuple[list[str], str]:
  """Returns shorter names of the runs, and the folder that all are in."""
  folder = ''
  if len(names) > 1:
    parts = [name.split('/')[:-1] for name in names]
    folder = ''.join(f'{part}/' for part in parts[0][: _equal(parts)])
  return _shortened([n.removeprefix(folder) for n in names], longest), folder


def _shortened(texts: Sequence[str], longest: int) -> list[str]:
  """Cuts long texts in the middle, unless two different ones become equal."""
  if max(map(len, texts)) <= longest:
    return list(texts)
  different = len(set(texts))
  for end in (longest * 2 // 3, longest // 3):
    start = longest - end - len(_CUT)
    cut = [
      f'{t[:start]}{_CUT}{t[-end:]}' if len(t) > longest else t for t in texts
    ]
    if len(set(cut)) == different:
      return cut
  # They differ in the middle: show that part.
  start, end = _equal(texts), _equal([t[::-1] for t in texts])
  cut = [t[max(start - 2, 0) : len(t) - max(end - 2, 0)] for t in texts]
  cut = [f'{_CUT}{t}{_CUT}'[: longest + 2 * len(_CUT)] for t in cut]
  return cut if len(set(cut)) == different else list(texts)


def _equal(sequences: Sequence[Sequence]) -> int:
  """Returns how many first items are the same in all sequences."""
  same = itertools.takewhile(
    lambda items: len(set(items)) == 1, zip(*sequences, strict=False)
  )
  return len(list(same))


def _header(name: str) -> list[str]:
  """Returns two lines: `schedule.` above `peak`, `test/` above `accuracy`."""
  mark = '/' if '/' in name else '.'
  section, dot, key = name.rpartition(mark)
  return [section + dot, key]


def _metric(values: pd.Series) -> list[str]:
  return [
    '-' if pd.isna(v) else f'{v:.4f}' if abs(v) < 100 else f'{v:.6g}'
    for v in values
  ]


def _steps(runs: pd.DataFrame) -> list[str]:
  """Returns `500`, or `300/500` of a run that is not finished."""
  none = [None] * len(runs)
  total = runs.get(f'{_CONFIG}total_steps', none)
  texts = []
  for done, step, steps in zip(
    runs['finished'], runs.get('step', none), total, strict=True
  ):
    text = '0' if pd.isna(step) else f'{step:.0f}'
    if not done:
      text += f'/{"?" if pd.isna(steps) else f"{steps:.0f}"}'
    texts.append(text)
  return texts


def _value(value) -> str:
  if isinstance(value, float):
    return '-' if pd.isna(value) else f'{value:.6g}'
  return '-' if value in (None, '') else str(value)


def _width(column: Sequence[str]) -> int:
  return max(map(len, column))

"""How Tables 1, 3 and 4 show settings, which need no run.

Our settings are read where a run would get them: from the modules that
`models.build` makes, and from the configs and sweeps that a command line names,
in the current folder. All models of a row must agree; if they do not, the cell
lists their settings.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import ml_collections

from vit_jax.paper.item import Item, Part
from vit_jax.paper.numbers import Printed, Value
from vit_jax.paper.report import Setting, Table

Read = Callable[[Any], Any]


def side(config: ml_collections.ConfigDict) -> int | str:
  """Returns the images' side in pixels; both sides if they differ."""
  height, width = config.image_size
  return height if height == width else f'{height}x{width}'


# How settings of all rows are read from a config.
COMMON: dict[str, Read] = {
  'batch size': attrgetter('data.batch_size'),
  'warmup steps': attrgetter('schedule.warmup_steps'),
  'image size': side,
  'gradient clip': attrgetter('optimizer.clip_norm'),
  'weight decay': attrgetter('optimizer.weight_decay'),
  # Only some optimizers have these.
  'Adam beta1': lambda config: config.optimizer.get('b1', 'none'),
  'Adam beta2': lambda config: config.optimizer.get('b2', 'none'),
  'momentum': lambda config: config.optimizer.get('momentum', 'none'),
}


def common(those: Iterable[Any], read: Read, paper: Value) -> Setting:
  """Returns the setting that modules or configs share, or a list of theirs.

  Args:
    those: the modules or configs.
    read: returns the setting of one.
    paper: as printed; if it is two with a slash between them, either agrees.
  """
  ours, *others = dict.fromkeys(map(read, those))
  if others:
    return Setting(', '.join(map(text, (ours, *others))), paper)
  if not isinstance(ours, int | float | str):
    ours = text(ours)  # Such as None for a setting that is not set.
  either = str(paper.value).split('/')
  return Setting(ours, paper, len(either) > 1 and text(ours) in either)


def text(value: Any) -> str:
  """Formats a setting without trailing zeros."""
  return f'{value:.12g}' if isinstance(value, int | float) else str(value)


def of_rows(
  paper: Printed,
  found: Mapping[str, Iterable[Any]],
  reads: Mapping[str, Read],
  others: Mapping[tuple[str, str], Setting],
) -> Table:
  """Tables the settings of each row.

  Args:
    paper: the table as printed.
    found: row -> its modules or configs.
    reads: column -> returns the setting of one.
    others: the cells of other columns.
  """
  cells = {
    (row, column): common(those, read, paper[row, column])
    for row, those in found.items()
    for column, read in reads.items()
  }
  return Table(paper.title, paper.rows, paper.columns, cells | {**others})


def of_all_rows(
  title: str,
  paper: Mapping[str, Value],
  found: Mapping[str, Iterable[ml_collections.ConfigDict]],
  special: Mapping[str, tuple[Iterable[Any], Read]],
) -> Table:
  """Tables the settings of all rows.

  Args:
    title: of the table.
    paper: setting -> as printed.
    found: row -> its configs.
    special: setting -> other configs and another reader.
  """
  every, cells = [*itertools.chain(*found.values())], {}
  for name, value in paper.items():
    those, read = special.get(name) or (every, COMMON[name])
    cells[name, 'All rows'] = common(those, read, value)
  return Table(title, [*paper], ['All rows'], cells)


def item(paper: Printed, blocks: Callable[[], Iterable[Part]]) -> Item:
  """Makes an item without runs; `blocks` is called when the item is shown."""
  return Item(
    paper.name,
    paper.title,
    lambda results, pictures: blocks(),
    # Also on the page of a miniature.
    notes=[
      "These are the settings at the paper's scale, not in miniature, beside"
      ' those that the paper prints. No runs are needed to compare them.'
    ],
  )

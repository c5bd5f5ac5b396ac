"""How Tables 1, 3 and 4 show settings, which need no run.

Our settings are read where a run would get them: from the modules that
`models.build` makes, and from the configs and sweeps that a command line names,
in the current folder. All models of a row must agree; if they do not, the cell
lists the settings with their models.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import ml_collections

from vit_jax.paper.item import Item, Part
from vit_jax.paper.numbers import Printed, Value
from vit_jax.paper.report import Setting, Settings
from vit_jax.runtime import command_line

# Configs by the name of a model, a run or a task.
Configs = Mapping[str, ml_collections.ConfigDict]
Read = Callable[[Any], Any]

# Also on the page of a miniature.
_SETTINGS = (
  "These are the settings at the paper's scale, not in miniature, beside those"
  ' that the paper prints. No runs are needed to compare them.'
)
# How settings of all rows are read from a config.
COMMON: dict[str, Read] = {
  'batch size': attrgetter('data.batch_size'),
  'warmup steps': attrgetter('schedule.warmup_steps'),
  'image size': lambda config: side(config),
  'gradient clip': attrgetter('optimizer.clip_norm'),
  'weight decay': attrgetter('optimizer.weight_decay'),
  # Only some optimizers have these.
  'Adam beta1': lambda config: config.optimizer.get('beta1', 'none'),
  'Adam beta2': lambda config: config.optimizer.get('beta2', 'none'),
  'momentum': lambda config: config.optimizer.get('momentum', 'none'),
}


def side(config: ml_collections.ConfigDict) -> int | str:
  """Returns the images' side in pixels; both sides if they differ."""
  height, width = config.image_size
  return height if height == width else f'{height}x{width}'


def config(name: str) -> ml_collections.ConfigDict:
  """Returns the config that `--config=NAME` gives a run."""
  return command_line.read_config([f'--config={name}'])


def common(those: Mapping[str, Any], read: Read, paper: Value) -> Setting:
  """Returns the setting that several share, or which of them has which one.

  Args:
    those: name -> module or config.
    read: returns the setting of one.
    paper: as printed; if it is two with a slash between them, either agrees.
  """
  groups: dict[Any, list[str]] = {}
  for name, one in those.items():
    groups.setdefault(read(one), []).append(name)
  if len(groups) > 1:
    who = {
      value: ', '.join(names)
      if len(names) < 3
      else f'{len(names)} of {len(those)}'
      for value, names in groups.items()
    }
    each = (f'{text(value)} ({names})' for value, names in who.items())
    return Setting(', '.join(each), paper)
  [ours] = groups
  if not isinstance(ours, int | float | str):
    ours = text(ours)  # Such as None for a setting that is not set.
  either = str(paper.value).split('/')
  return Setting(ours, paper, len(either) > 1 and text(ours) in either)


def text(value: Any) -> str:
  """Formats a setting without trailing zeros."""
  return f'{value:.12g}' if isinstance(value, int | float) else str(value)


def of_all_rows(
  title: str,
  paper: Mapping[str, Value],
  ours: Mapping[str, tuple[Configs, Read]],
) -> Settings:
  """Tables the settings of all rows; `ours`: setting -> configs and reader."""
  cells = {
    (name, 'All rows'): common(*ours[name], value)
    for name, value in paper.items()
  }
  return Settings(title, (*paper,), ('All rows',), cells)


def item(paper: Printed, blocks: Callable[[], Iterable[Part]]) -> Item:
  """Makes an item without runs; `blocks` is called when the item is shown."""
  return Item(
    paper.name,
    paper.title,
    lambda results, pictures: blocks(),
    notes=lambda results: [_SETTINGS],
  )

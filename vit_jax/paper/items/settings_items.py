"""Tables 1, 3 and 4 as items: models and settings, which need no run.

Our settings are read where a run would get them: from the modules that
`models.build` makes, and from the configs and sweeps that a command line names,
in the current folder. All models of a row must agree; if they do not, the cell
lists the settings with their models.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import flax.linen as nn
import jax
import ml_collections
from clu import parameter_overview

from vit_jax import models
from vit_jax.paper import numbers
from vit_jax.paper.items import table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Section, Setting, Settings
from vit_jax.paper.runs import DATASETS, Results
from vit_jax.runtime import command_line
from vit_jax.sweep import reading

# Configs by the name of a model, a run or a task.
Configs = Mapping[str, ml_collections.ConfigDict]
Read = Callable[[ml_collections.ConfigDict], Any]
# The blocks and the notes of a section.
Shown = tuple[Sequence[Settings], Sequence[str]]

# A row of Table 1 -> the models of that size in Table 5. The parameters of the
# first are compared with the paper's.
MODELS_1 = {
  'ViT-B': ('ViT-B/16', 'ViT-B/32'),
  'ViT-L': ('ViT-L/16', 'ViT-L/32'),
  'ViT-H': ('ViT-H/14',),
}
# A column of Table 1 -> a module's field.
_FIELDS = {
  **{'Layers': 'depth', 'Hidden size': 'width'},
  **{'MLP size': 'mlp_dim', 'Heads': 'heads'},
}
# A row of Table 4 -> its name in configs/finetune.py.
_TASKS = {
  values.IMAGENET: 'imagenet2012',
  values.CIFAR100: 'cifar100',
  values.CIFAR10: 'cifar10',
  values.PETS: 'pets',
  values.FLOWERS: 'flowers',
}

# How a setting is read. ------------------------------------------------------


def _dropout(config: ml_collections.ConfigDict) -> float | None:
  """Returns the dropout rate; 0 for models without dropout."""
  if 'dropout_rate' not in models.options(config.model.name):
    return 0.0
  return config.model.dropout_rate


def _side(config: ml_collections.ConfigDict) -> int | str:
  """Returns the images' side in pixels; both sides if they differ."""
  height, width = config.image_size
  return height if height == width else f'{height}x{width}'


def _of_optimizer(key: str) -> Read:
  """Returns a function that reads a setting that only some optimizers have."""
  return lambda config: config.optimizer.get(key, 'none')


_PRETRAINING: dict[str, Read] = {
  'Epochs': attrgetter('epochs'),
  'Base LR': attrgetter('schedule.peak'),
  'LR decay': attrgetter('schedule.name'),
  'Weight decay': attrgetter('optimizer.weight_decay'),
  'Dropout': _dropout,
}
_PRETRAINING_ALL: dict[str, Read] = {
  'batch size': attrgetter('data.batch_size'),
  'warmup steps': attrgetter('schedule.warmup_steps'),
  'image size': _side,
  'gradient clip': attrgetter('optimizer.clip_norm'),
  'Adam beta1': _of_optimizer('beta1'),
  'Adam beta2': _of_optimizer('beta2'),
}
_FINETUNING_ALL: dict[str, Read] = {
  'batch size': attrgetter('data.batch_size'),
  'image size': _side,
  'gradient clip': attrgetter('optimizer.clip_norm'),
  'momentum': _of_optimizer('momentum'),
  'weight decay': attrgetter('optimizer.weight_decay'),
}


def _config(name: str) -> ml_collections.ConfigDict:
  """Returns the config that `--config=NAME` gives a run."""
  return command_line.read_config([f'--config={name}'])


def _common(
  those: Mapping[str, Any], read: Callable[[Any], Any], paper: values.Value
) -> Setting:
  """Returns the setting that several share, or which of them has which one.

  Args:
    those: name -> module or config.
    read: returns the setting of one.
    paper: as printed; if it is two with a slash between them, either agrees.
  """
  found = {name: read(one) for name, one in those.items()}
  groups = {value: [] for value in found.values()}
  for name, value in found.items():
    groups[value].append(name)
  if len(groups) > 1:
    who = lambda names: (  # noqa: E731
      ', '.join(names) if len(names) < 3 else f'{len(names)} of {len(found)}'
    )
    each = (f'{_text(value)} ({who(names)})' for value, names in groups.items())
    return Setting(', '.join(each), paper)
  ours = next(iter(found.values()))
  if not isinstance(ours, int | float | str):
    ours = _text(ours)  # Such as None for a setting that is not set.
  either = str(paper.value).split('/')
  return Setting(ours, paper, len(either) > 1 and _text(ours) in either)


def _text(value: Any) -> str:
  return f'{value:.12g}' if isinstance(value, int | float) else str(value)


# Items. ----------------------------------------------------------------------


# Also on the page of a miniature.
_SETTINGS = (
  "These are the settings at the paper's scale, not in miniature, beside those"
  ' that the paper prints. No runs are needed to compare them.'
)


def _item(paper: values.Table, blocks: Callable[[], Shown]) -> Item:
  """Makes an item without runs; `blocks` is called when the item is shown."""

  def render(results: Results, pictures: pathlib.Path) -> Section:
    del results, pictures
    shown, notes = blocks()
    return Section(paper.name, paper.title, shown, notes=[_SETTINGS, *notes])

  return Item(paper.name, paper.title, (), render)


def _of_all_rows(
  title: str,
  paper: Mapping[str, values.Value],
  ours: Mapping[str, tuple[Configs, Read]],
) -> Settings:
  """Tables the settings of all rows; `ours`: setting -> configs and reader."""
  cells = {
    (name, 'All rows'): _common(*ours[name], value)
    for name, value in paper.items()
  }
  return Settings(title, (*paper,), ('All rows',), cells)


def table1() -> Item:
  """Sizes, and parameters."""
  return _item(numbers.TABLE_1, _sizes)


def _sizes() -> Shown:
  paper, cells, counted = numbers.TABLE_1, {}, []
  for row in paper.rows:
    modules = {
      name: models.build(name, num_classes=1000) for name in MODELS_1[row]
    }
    for column, field in _FIELDS.items():
      cells[row, column] = _common(
        modules, attrgetter(field), paper[row, column]
      )
    counts = {name: parameters(module) for name, module in modules.items()}
    whole, _ = counts[MODELS_1[row][0]]
    printed = paper[row, 'Params']
    cells[row, 'Params'] = Setting(
      f'{whole:,}', printed, accepted=abs(whole - printed.value) < 1_000_000
    )
    counted += [
      f'{name}: {whole:,} with the head, {whole - head:,} without.'
      for name, (whole, head) in counts.items()
    ]
  return [Settings(paper.title, paper.rows, paper.columns, cells)], [
    'We count the parameters of each model with its smallest patch, for images'
    ' of 224 px, with a linear head of 1,000 classes. A count has a ✓ if'
    ' rounding it up or down to whole millions gives the number of the paper.'
    ' The paper does not say which patch it counts with, or whether with the'
    ' head. No single choice gives all three of its numbers. For example, 307M'
    ' is ViT-L/32 with the head.',
    *counted,
  ]


def parameters(module: nn.Module) -> tuple[int, int]:
  """Returns a model's parameter counts for 224 px: in all, and of the head."""
  params = jax.eval_shape(
    module.init,
    jax.eval_shape(jax.random.key, 0),
    jax.ShapeDtypeStruct((1, 224, 224, 3), 'float32'),
  )['params']
  count = parameter_overview.count_parameters
  return count(params), count(params['head'])


def table3() -> Item:
  """Pre-training: configs/pretrain.py for each model of a row."""
  return _item(numbers.TABLE_3, _pretraining)


def _pretraining() -> Shown:
  paper, cells, everything = numbers.TABLE_3, {}, {}
  for row, (names, data) in zip(paper.rows, numbers.ROWS_3, strict=True):
    found = {
      name: _config(f'configs/pretrain.py:{name},{DATASETS[data]}')
      for name in names
    }
    for column, read in _PRETRAINING.items():
      cells[row, column] = _common(found, read, paper[row, column])
    everything |= {(name, data): config for name, config in found.items()}
  configs = {', '.join(of): config for of, config in everything.items()}
  of_all = {name: (configs, read) for name, read in _PRETRAINING_ALL.items()}
  of_all['gradient clip'] = (
    {
      name: c
      for (name, data), c in everything.items()
      if data == values.IMAGENET
    },
    _PRETRAINING_ALL['gradient clip'],
  )
  clipped = sorted(
    {data for (_, data), c in everything.items() if c.optimizer.clip_norm}
  )
  return [
    Settings(paper.title, paper.rows, paper.columns, cells),
    _of_all_rows('What all rows share', numbers.PRETRAINING, of_all),
  ], [
    'Where the paper prints two numbers of epochs, the table shows the one that'
    ' configs/pretrain.py has by default. The option epochs=N selects the'
    ' other. ResNets have no dropout, which the table shows as a rate of 0.',
    'Pre-training clips gradients on these data sets only:'
    f' {", ".join(clipped) or "none"}.',
  ]


def table4() -> Item:
  """Fine-tuning: the runs that its sweep would start."""
  return _item(numbers.TABLE_4, _finetuning)


def _finetuning() -> Shown:
  paper, cells, everything = numbers.TABLE_4, {}, {}
  for row in paper.rows:
    found = _runs(row)
    rates = {config.schedule.peak: None for config in found.values()}
    ours = '{' + ', '.join(map(_text, rates)) + '}'
    cells[row, 'Base LR'] = Setting(
      ours if len(rates) > 1 else next(iter(rates)), paper[row, 'Base LR']
    )
    cells[row, 'Steps'] = _common(
      found, attrgetter('total_steps'), paper[row, 'Steps']
    )
    everything |= found
  of_all = {name: (everything, read) for name, read in _FINETUNING_ALL.items()}
  return [
    Settings(paper.title, paper.rows, paper.columns, cells),
    _of_all_rows(
      'What all rows share, and what only Table 2 has',
      numbers.FINETUNING,
      of_all | _table2(),
    ),
  ], [
    'For each task, the sweep configs/sweeps/finetune.py tries several learning'
    ' rates. The table shows the rates that it tries for'
    " ViT-B/16. On ImageNet, 0.06 is one of them, although the paper's text has"
    ' it only for ResNets and hybrids. The sweep takes the rate with the best'
    ' accuracy on validation images, and reports the test accuracy of this run.'
    ' For ResNets, the sweep also tries the fine-tuning settings of the BiT'
    ' paper. The row VTAB shows the settings that all 19 tasks of'
    ' configs/vtab.py share.'
  ]


def _runs(row: str) -> Configs:
  """Returns all runs of a row of Table 4, for all candidate rates."""
  if row == values.VTAB:
    return dict(_config('configs/vtab.py:ViT-B/16,all').stages.items())
  sweep = reading.load(f'configs/sweeps/finetune.py:ViT-B/16,{_TASKS[row]}')
  [study] = sweep.studies
  return {run.name: reading.read_config(run) for run in study.all_runs()}


def _table2() -> dict[str, tuple[Configs, Read]]:
  """Returns the settings that only Table 2's runs on ImageNet have."""
  nodes = [
    node for node in table_items.table2().nodes if node.task == values.IMAGENET
  ]
  sizes = {node.pretraining.model: node.resolution for node in nodes}
  text = 'configs/finetune.py:{},imagenet2012,resolution={}'
  found = {model: _config(text.format(model, sizes[model])) for model in sizes}
  shown = {
    f'image size, {model} in Table 2': ({model: config}, _side)
    for model, config in found.items()
  }
  decay = attrgetter('polyak.decay')
  return {**shown, 'Polyak factor in Table 2': (found, decay)}

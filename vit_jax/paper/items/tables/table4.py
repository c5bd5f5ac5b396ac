"""Table 4: the settings of fine-tuning (B.1.1), of the runs of its sweep."""

from operator import attrgetter

import ml_collections

from vit_jax.paper import numbers
from vit_jax.paper.items.tables import settings, table2
from vit_jax.paper.numbers import VTAB, Value
from vit_jax.paper.report import Setting, Table
from vit_jax.runtime import command_line
from vit_jax.sweep import reading

PAPER = numbers.printed('table4')
# The settings of all rows, and what Table 2 adds on ImageNet.
ALL = {
  'batch size': Value(512, note='Table 4, caption'),
  'image size': Value(384, note='Table 4, caption'),
  'gradient clip': Value(1, note='Table 4, caption'),
  'momentum': Value(0.9, note='Appendix B.1.1'),
  'weight decay': Value(0, note='Table 4, caption'),
  'image size, ViT-L/16 in Table 2': Value(512, note='Section 4.1'),
  'image size, ViT-H/14 in Table 2': Value(518, note='Section 4.1'),
  'Polyak factor in Table 2': Value(0.9999, note='Section 4.1'),
}
# Row -> its name in configs.
TASKS = {
  numbers.IMAGENET: 'imagenet2012',
  numbers.CIFAR10: 'cifar10',
  numbers.CIFAR100: 'cifar100',
  numbers.PETS: 'pets',
  numbers.FLOWERS: 'flowers',
}


def _finetuning() -> list[Table | str]:
  found, rates = {row: _runs(row) for row in PAPER.rows}, {}
  for row, configs in found.items():
    [ours, *others] = tried = dict.fromkeys(c.schedule.peak for c in configs)
    if others:
      ours = '{' + ', '.join(map(settings.text, tried)) + '}'
    rates[row, 'Base LR'] = Setting(ours, PAPER[row, 'Base LR'])
  steps = {'Steps': attrgetter('total_steps')}
  title = 'What all rows share, and what only Table 2 has'
  return [
    settings.of_rows(PAPER, found, steps, rates),
    settings.of_all_rows(title, ALL, found, _table2()),
    'The table shows the rates that configs/sweeps/finetune.py tries for'
    " ViT-B/16. On ImageNet, 0.06 is one of them, although the paper's text has"
    ' it only for ResNets and hybrids. For ResNets, the sweep also tries the'
    ' settings of the BiT paper. All 19 tasks of VTAB share their settings.',
  ]


def _runs(row: str) -> list[ml_collections.ConfigDict]:
  """Returns all runs of a row, for all candidate rates."""
  if row == VTAB:
    config = command_line.load_config('configs/vtab.py:ViT-B/16,all')
    return [*config.stages.values()]
  sweep = reading.load(f'configs/sweeps/finetune.py:ViT-B/16,{TASKS[row]}')
  [study] = sweep.studies
  return [reading.read_config(run) for run in study.all_runs()]


def _table2() -> dict[str, tuple[list, settings.Read]]:
  """Returns the settings that only Table 2's runs on ImageNet have."""
  found, shown = [], {}
  for model, size in table2.RESOLUTION.items():
    text = f'configs/finetune.py:{model},imagenet2012,resolution={size}'
    found.append(command_line.load_config(text))
    shown[f'image size, {model} in Table 2'] = ([found[-1]], settings.side)
  return shown | {
    'Polyak factor in Table 2': (found, attrgetter('polyak.decay'))
  }


ITEM = settings.item(PAPER, _finetuning)

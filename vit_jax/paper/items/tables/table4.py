"""Table 4: the settings of fine-tuning (B.1.1), of the runs of its sweep."""

from operator import attrgetter

from vit_jax.paper.items.tables import settings, table2
from vit_jax.paper.numbers import (
  CIFAR10,
  CIFAR100,
  FLOWERS,
  IMAGENET,
  PETS,
  VTAB,
  Value,
  read_table,
)
from vit_jax.paper.report import Setting, Settings
from vit_jax.sweep import reading

PAPER = read_table(
  'table4',
  'Fine-tuning, with the learning rates to choose from',
  ('Steps', 'Base LR'),
  """
  ImageNet            20000  {0.003, 0.01, 0.03, 0.06}
  CIFAR-100           10000  {0.001, 0.003, 0.01, 0.03}
  CIFAR-10            10000  {0.001, 0.003, 0.01, 0.03}
  Oxford-IIIT Pets      500  {0.001, 0.003, 0.01, 0.03}
  Oxford Flowers-102    500  {0.001, 0.003, 0.01, 0.03}
  VTAB                 2500  0.01
  """,
  special={
    (IMAGENET, 'Base LR'): {
      'note': 'by the text of the paper, 0.06 is only for ResNets and hybrids'
    }
  },
)
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
# Row -> its name in configs/finetune.py.
_TASKS = {
  IMAGENET: 'imagenet2012',
  CIFAR100: 'cifar100',
  CIFAR10: 'cifar10',
  PETS: 'pets',
  FLOWERS: 'flowers',
}


def _finetuning() -> list[Settings | str]:
  cells, everything = {}, {}
  for row in PAPER.rows:
    found = _runs(row)
    rates = {config.schedule.peak: None for config in found.values()}
    ours = '{' + ', '.join(map(settings.text, rates)) + '}'
    cells[row, 'Base LR'] = Setting(
      ours if len(rates) > 1 else next(iter(rates)), PAPER[row, 'Base LR']
    )
    cells[row, 'Steps'] = settings.common(
      found, attrgetter('total_steps'), PAPER[row, 'Steps']
    )
    everything |= found
  of_all = {
    name: (everything, settings.COMMON[name])
    for name in ALL
    if name in settings.COMMON
  }
  return [
    Settings(PAPER.title, PAPER.rows, PAPER.columns, cells),
    settings.of_all_rows(
      'What all rows share, and what only Table 2 has', ALL, of_all | _table2()
    ),
    'For each task, the sweep configs/sweeps/finetune.py tries several learning'
    ' rates. The table shows the rates that it tries for'
    " ViT-B/16. On ImageNet, 0.06 is one of them, although the paper's text has"
    ' it only for ResNets and hybrids. The sweep takes the rate with the best'
    ' accuracy on validation images, and reports the test accuracy of this run.'
    ' For ResNets, the sweep also tries the fine-tuning settings of the BiT'
    ' paper. The row VTAB shows the settings that all 19 tasks of'
    ' configs/vtab.py share.',
  ]


def _runs(row: str) -> settings.Configs:
  """Returns all runs of a row, for all candidate rates."""
  if row == VTAB:
    config = settings.config('configs/vtab.py:ViT-B/16,all')
    return dict(config.stages.items())
  sweep = reading.load(f'configs/sweeps/finetune.py:ViT-B/16,{_TASKS[row]}')
  [study] = sweep.studies
  return {run.name: reading.read_config(run) for run in study.all_runs()}


def _table2() -> dict[str, tuple[settings.Configs, settings.Read]]:
  """Returns the settings that only Table 2's runs on ImageNet have."""
  text = 'configs/finetune.py:{},imagenet2012,resolution={}'
  found = {
    model: settings.config(text.format(model, size))
    for model, size in table2.RESOLUTION.items()
  }
  shown = {
    f'image size, {model} in Table 2': ({model: config}, settings.side)
    for model, config in found.items()
  }
  decay = attrgetter('polyak.decay')
  return {**shown, 'Polyak factor in Table 2': (found, decay)}


ITEM = settings.item(PAPER, _finetuning)

"""Table 3: the settings of pre-training (B.1), of configs/pretrain.py."""

from operator import attrgetter

import ml_collections

from vit_jax import models
from vit_jax.paper.items.tables import settings
from vit_jax.paper.numbers import IMAGENET, Value, printed
from vit_jax.paper.report import Table
from vit_jax.paper.runs import DATASETS
from vit_jax.runtime import command_line

# Three runs of Tables 5 and 6 are not in Table 3: BiT-R152x2 and BiT-R200x3 for
# 14 epochs, and ViT-H/14 on ImageNet-21k.
PAPER = printed('table3')


def models_of(row: str) -> tuple[list[str], str]:
  """Returns the models and the data of a label: `ViT-B/{16,32}, JFT-300M`."""
  name, data = row.rsplit(', ', 1)
  if name == 'ViT-*':  # The models with results in Table 5.
    return [f'ViT-{size}/{patch}' for size in 'BL' for patch in (16, 32)], data
  model, _, ends = name.rstrip('}').partition('{')
  return [f'{model}{end}' for end in ends.split(',')], data


# The settings of all rows.
ALL = {
  'batch size': Value(4096, note='Table 3, caption'),
  'warmup steps': Value(10_000, note='Table 3, caption'),
  'image size': Value(224, note='Table 3, caption'),
  'gradient clip': Value(1, note='Table 3, caption; on ImageNet only'),
  'Adam beta1': Value(0.9, note='Section 4.1'),
  'Adam beta2': Value(0.999, note='Section 4.1'),
}


def _dropout(config: ml_collections.ConfigDict) -> float | None:
  """Returns the dropout rate; 0 for models without dropout."""
  if 'dropout_rate' not in models.options(config.model.name):
    return 0.0
  return config.model.dropout_rate


_COLUMNS: dict[str, settings.Read] = {
  'Epochs': attrgetter('epochs'),
  'Base LR': attrgetter('schedule.peak'),
  'LR decay': attrgetter('schedule.name'),
  'Weight decay': attrgetter('optimizer.weight_decay'),
  'Dropout': _dropout,
}


def _pretraining() -> list[Table | str]:
  found, of_data = {}, {}
  for row in PAPER.rows:
    names, data = models_of(row)
    found[row] = [
      command_line.load_config(f'configs/pretrain.py:{name},{DATASETS[data]}')
      for name in names
    ]
    of_data.setdefault(data, []).extend(found[row])
  clip = settings.COMMON['gradient clip']
  clipped = [data for data, of in of_data.items() if any(map(clip, of))]
  special = {'gradient clip': (of_data[IMAGENET], clip)}
  return [
    settings.of_rows(PAPER, found, _COLUMNS, {}),
    settings.of_all_rows('What all rows share', ALL, found, special),
    'Where the paper prints two numbers of epochs, the table shows the one that'
    ' configs/pretrain.py has by default; the option epochs=N selects the'
    ' other. ResNets have no dropout, which the table shows as a rate of 0.',
    'Pre-training clips gradients on these data sets only:'
    f' {", ".join(sorted(clipped)) or "none"}.',
  ]


ITEM = settings.item(PAPER, _pretraining)

"""All numbers of the paper (arXiv:2010.11929) in one place, with their sources.

from vit_jax.paper import numbers

numbers.TABLES['table2']['ImageNet', 'ViT-H/14, JFT-300M'].value  # 88.55
numbers.average5(numbers.TABLES['table6'].row('ViT-B/32, 7 epochs'))  # 92.50

This is plain data, which loads fast: no array library is imported. Besides the
printed numbers there are derived ones, with a note that says so, and numbers
that the authors published elsewhere: the names imported from `published.py`.
"""

import dataclasses

from vit_jax.paper.numbers.compute import (
  AXIAL_COMPUTE,
  COMPUTE,
  COMPUTE_SAVED,
  CORE_DAYS,
  DAYS_ON_8_CORES,
  EXAFLOPS,
  FINETUNING_GMACS,
  TFLOPS_PER_CORE,
  UNIFORM_ATTENTION_DISTANCE,
)
from vit_jax.paper.numbers.figure_points import FIGURES
from vit_jax.paper.numbers.means import (
  AVERAGE5,
  VTAB_GROUPS,
  average5,
  vtab_means,
)
from vit_jax.paper.numbers.panels import PANELS, Panel
from vit_jax.paper.numbers.published import (
  FROM_SCRATCH,
  RELEASED,
  RELEASED_224,
  SHORT_FINETUNING,
  UPSTREAM,
)
from vit_jax.paper.numbers.result_tables import (
  COLUMNS_2,
  COLUMNS_7,
  COLUMNS_9,
  ROWS_5,
  ROWS_6,
  TABLE_2,
  TABLE_5,
  TABLE_6,
  TABLE_7,
  TABLE_8,
  TABLE_9,
)
from vit_jax.paper.numbers.settings import (
  FINETUNING,
  PRETRAINING,
  ROWS_3,
  SHAPE_BASE,
  TABLE_1,
  TABLE_3,
  TABLE_4,
)
from vit_jax.paper.numbers.values import (
  IMAGENET,
  IMAGENET21K,
  JFT,
  Point,
  Table,
  Value,
)

__all__ = [
  'AVERAGE5',
  'AXIAL_COMPUTE',
  'COLUMNS_2',
  'COLUMNS_7',
  'COLUMNS_9',
  'COMPUTE',
  'COMPUTE_SAVED',
  'CORE_DAYS',
  'DAYS_ON_8_CORES',
  'EXAFLOPS',
  'FIGURES',
  'FINETUNING',
  'FINETUNING_GMACS',
  'FROM_SCRATCH',
  'MASKED_PATCH',
  'OBJECTNET',
  'OBJECTNET_BIT',
  'PANELS',
  'PRETRAINING',
  'REGULARIZATION',
  'RELEASED',
  'RELEASED_224',
  'ROWS_3',
  'ROWS_5',
  'ROWS_6',
  'SHAPE_BASE',
  'SHORT_FINETUNING',
  'TABLES',
  'TFLOPS_PER_CORE',
  'UNIFORM_ATTENTION_DISTANCE',
  'UPSTREAM',
  'VTAB_GROUPS',
  'Panel',
  'Point',
  'Table',
  'Value',
  'average5',
  'vtab_means',
]

TABLES = {
  table.name: table
  for table in (
    *(TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5),
    *(TABLE_6, TABLE_7, TABLE_8, TABLE_9),
  )
}

# Metric -> percent, in the setup of the BiT paper; its own numbers follow.
OBJECTNET = {
  'top-1': Value(61.7, note='ViT-H/14, Appendix D.9', printed='61.7'),
  'top-5': Value(82.1, note='ViT-H/14, Appendix D.9', printed='82.1'),
}
_FROM_BIT = 'BiT-R152x4, from the BiT paper, arXiv:1912.11370'
OBJECTNET_BIT = {
  'top-1': Value(58.7, note=_FROM_BIT),
  'top-5': Value(80.0, note=_FROM_BIT),
  'top-1, cropped to the objects': Value(63.8, note=_FROM_BIT),
  'top-5, cropped to the objects': Value(85.1, note=_FROM_BIT),
}

# Accuracy of ViT-B/16 on ImageNet in percent, by pre-training, and the printed
# differences between masked patches and the others in percentage points.
MASKED_PATCH = {
  'masked patches': Value(79.9, note='Section 4.6', printed='79.9'),
  **{
    training: dataclasses.replace(
      TABLE_5[f'{data}: ImageNet', 'ViT-B/16'], note='Table 5'
    )
    for training, data in (
      ('from scratch', IMAGENET),
      ('supervised, ImageNet-21k', IMAGENET21K),
      ('supervised, JFT-300M', JFT),
    )
  },
  'more than from scratch': Value(2, note='Section 4.6', printed='2%'),
  'less than supervised': Value(4, note='Section 4.6', printed='4%'),
}

# Accuracy of ViT-B/16 on ImageNet in percent, pre-trained on ImageNet alone, by
# its regularization; in words where the paper has no number.
_BELOW = 'a few percentage points below ResNets of comparable size'
REGULARIZATION = {
  'strong': dataclasses.replace(
    MASKED_PATCH['from scratch'],
    note='from Table 5; B.1 calls strong regularization key',
  ),
  'weak': Value(_BELOW, note='Section 1', printed=_BELOW),
}

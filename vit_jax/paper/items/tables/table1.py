"""Table 1: the sizes of the Vision Transformers, and their parameters (4.1)."""

from operator import attrgetter

import flax.linen as nn
import jax
from clu import parameter_overview

from vit_jax import models
from vit_jax.paper.items.tables import settings
from vit_jax.paper.numbers import printed
from vit_jax.paper.report import Setting, Table

PAPER = printed('table1')
# Row -> the models of that size in Table 5. The parameters of the first are
# compared with the paper's.
MODELS = {
  'ViT-B': ('ViT-B/16', 'ViT-B/32'),
  'ViT-L': ('ViT-L/16', 'ViT-L/32'),
  'ViT-H': ('ViT-H/14',),
}
_FIELDS = {
  'Layers': attrgetter('depth'),
  'Hidden size': attrgetter('width'),
  'MLP size': attrgetter('mlp_dim'),
  'Heads': attrgetter('heads'),
}


def _sizes() -> list[Table | str]:
  built, params, counted = {}, {}, []
  for row, names in MODELS.items():
    built[row] = [models.build(name, num_classes=1000) for name in names]
    whole, *_ = counts = [*map(_parameters, built[row])]
    printed = PAPER[row, 'Params']
    params[row, 'Params'] = Setting(
      f'{whole:,}', printed, accepted=abs(whole - printed.value) < 1_000_000
    )
    for name, count in zip(names, counts, strict=True):
      counted.append(f'{name} {count:,}')
  return [
    settings.of_rows(PAPER, built, _FIELDS, params),
    'We count the parameters of each model with its smallest patch, for images'
    ' of 224 px, with a linear head of 1,000 classes. A count has a ✓ if'
    ' rounding it up or down to whole millions gives the number of the paper.'
    ' The paper does not say which patch it counts with, or whether with the'
    ' head. No single choice gives all three of its numbers. Our counts:'
    f' {"; ".join(counted)}.',
  ]


def _parameters(module: nn.Module) -> int:
  """Returns a model's number of parameters, for 224 px."""
  found = jax.eval_shape(
    module.init,
    jax.eval_shape(jax.random.key, 0),
    jax.ShapeDtypeStruct((1, 224, 224, 3), 'float32'),
  )
  return parameter_overview.count_parameters(found['params'])


ITEM = settings.item(PAPER, _sizes)

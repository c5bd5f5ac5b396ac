"""Figure 3: fine-tuned accuracy on ImageNet by pre-training data (4.3)."""

from collections.abc import Iterator

from vit_jax.paper import claims
from vit_jax.paper.claims import Claim, Sum, tuned
from vit_jax.paper.item import figure
from vit_jax.paper.items.tables import table5
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K, JFT
from vit_jax.paper.runs import Results, Transfer, pretraining

DATA = (IMAGENET, IMAGENET21K, JFT)
# The paper does not name its BiT models; these are Table 6's smallest and
# largest with 7 epochs.
BITS = ('BiT-R50x1', 'BiT-R152x2')
VITS = ('ViT-B/32', 'ViT-B/16', 'ViT-L/32', 'ViT-L/16', 'ViT-H/14')
# The paper has no ViT-H/14 that is pre-trained on ImageNet.
STARTS = {
  (model, data): pretraining(model, data)
  for data in DATA
  for model in (*VITS, *BITS)
  if (model, data) != ('ViT-H/14', IMAGENET)
}
ERROR_BARS = (
  'Points are means over pre-trainings that differ in their seed, with their'
  ' standard deviation.'
)
_BIT_NOTE = (
  ' The paper does not say how it pre-trained BiT on ImageNet and on'
  " ImageNet-21k. On ImageNet, we use the BiT authors' settings: 90"
  ' epochs of SGD. On ImageNet-21k, we use the settings of the ViTs.'
)


_FOUND = {place: tuned(IMAGENET)(start) for place, start in STARTS.items()}


def _lead(one: str, other: str, data: str) -> Sum:
  return _FOUND[one, data] - _FOUND[other, data]


# The lead of the larger ViT.
_LITTLE, _MORE, _MUCH = (_lead('ViT-L/16', 'ViT-B/16', data) for data in DATA)
_CLAIMS = [
  Claim(
    'large_is_worse',
    'Pre-trained on ImageNet alone, a larger ViT is worse than a smaller one'
    ' (4.3, Figure 3).',
    {'lead of ViT-B/16 over ViT-L/16': -1.0 * _LITTLE},
  ),
  Claim(
    'large_is_similar',
    'Pre-trained on ImageNet-21k, a larger ViT is about as good as a smaller'
    ' one: their difference is less than the lead of the larger ViT on'
    ' JFT-300M (4.3, Figure 3).',
    {
      'gain on JFT-300M minus that on ImageNet-21k': _MUCH - _MORE,
      'gain on JFT-300M plus that on ImageNet-21k': _MUCH + _MORE,
    },
    'The gain is the lead of ViT-L/16 over ViT-B/16.',
  ),
  Claim(
    'large_is_better',
    'Pre-trained on JFT-300M, a larger ViT is better than a smaller one (4.3,'
    ' Figure 3).',
    {'lead of ViT-L/16 over ViT-B/16': _MUCH},
  ),
  Claim(
    'resnets_on_little',
    'Pre-trained on ImageNet alone, a large ViT is behind the ResNets (4.3,'
    ' Figure 3).',
    {
      f'lead of {bit} over ViT-L/16': _lead(bit, 'ViT-L/16', IMAGENET)
      for bit in BITS
    },
  ),
  Claim(
    'vits_on_much',
    'Pre-trained on JFT-300M, a large ViT is ahead of the ResNets (4.3,'
    ' Figure 3).',
    {
      f'lead of ViT-L/16 over {bit}': _lead('ViT-L/16', bit, JFT)
      for bit in BITS
    },
  ),
]


def _points(results: Results) -> Iterator[tuple]:
  for place, mean in _FOUND.items():
    yield *place, mean.by_start(results)
  for (row, model), value in table5.PAPER.cells.items():
    data, task = table5.ROWS[row]
    if task == IMAGENET:
      yield model, data, value.noted('Table 5')


ITEM = figure(
  'figure3',
  'ImageNet accuracy by pre-training data',
  _points,
  {
    'x_label': 'Pre-training data',
    'y_label': 'ImageNet top-1 accuracy (%)',
    'series': [*VITS, *BITS],
    'x_names': DATA,
  },
  caption=lambda results: ERROR_BARS + _BIT_NOTE * results.comparable,
  shown=lambda scale: [Transfer(start, IMAGENET) for start in STARTS.values()],
  claims=claims.not_in_miniature(claims.PLATEAU, _CLAIMS),
)

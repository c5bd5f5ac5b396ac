"""Models on subsets of JFT-300M (4.3): Figure 4, and what goes with it.

Figure 4 is few-shot accuracy by number of pre-training images. `extremes` and
`overfitting` are what the text says of the same runs.
"""

from vit_jax.paper import claims, cost
from vit_jax.paper.claims import EARLY_STOPPED, Claim, Sum, of_run
from vit_jax.paper.item import figure, grid, table
from vit_jax.paper.items.tables import table6
from vit_jax.paper.runs import Pretraining, structure

EPOCHS = 7
# Numbers of images; None is the whole set.
IMAGES = (9_000_000, 30_000_000, 90_000_000, None)
FEW, _, MANY, ALL = IMAGES
NAMES = {FEW: '9M images', MANY: '90M images', ALL: 'all images'}
MODELS = (
  *('ViT-L/16', 'ViT-L/32', 'ViT-B/32', 'ViT-b/32'),
  *('BiT-R50x1', 'BiT-R152x2'),
)
# The ResNet to compare with ViT-B/32. By Table 6, BiT-R50x1 has 50 exaFLOPs and
# ViT-B/32 has 55; in miniature, BiT-R50x1 has only a fifth of the operations of
# ViT-B/32, and BiT-R50x2 two thirds.
RESNET = {'paper': 'BiT-R50x1', 'mini': 'BiT-R50x2'}


def start(model: str, images: int | None = None) -> Pretraining:
  """Returns the first run of a point."""
  return Pretraining(model, epochs=EPOCHS, images=images)


def computes(scale: str, *models: str) -> str:
  """Returns a sentence on the compute of models on all images."""
  parts = [
    f'{model} {table6.compute(start(model), scale):.3g} {cost.UNITS[scale]}'
    for model in models
  ]
  return f'Compute: {", ".join(parts)}.'


def rivals(scale: str) -> tuple[str, str]:
  """Returns ViT-B/32 and the ResNet to compare with it."""
  return 'ViT-B/32', RESNET[structure(scale)]


def few_and_all(scale: str) -> dict[str, Pretraining]:
  """Returns the rivals' first runs on 9M images and on all, by their names."""
  return {
    f'{model}, {NAMES[images]}': start(model, images)
    for model in rivals(scale)
    for images in (FEW, ALL)
  }


# Figure 4. --------------------------------------------------------------------

# In miniature, these large models have only the points of claims.
_LARGE = ('ViT-L/16', 'BiT-R152x2')
_COUNTS = {
  'paper': 'Models that no claim needs have one run for each point.',
  'mini': 'In miniature, the curves of ViT-L/16 and BiT-R152x2 have only the'
  ' points that the claims need. The paper compares ViT-B/32 with BiT-R50x1,'
  ' which has far less compute in miniature. So the claims compare ViT-B/32'
  ' with BiT-R50x2, which we chose after the first runs of this figure'
  ' (LOG.md). All numbers of images are divided by the same factor; we still'
  ' call them 9M, 30M, 90M and 300M, as in the paper.',
}


def _lead(one: str, other: str, images: int | None) -> Sum:
  first, second = (EARLY_STOPPED(start(m, images)) for m in (one, other))
  return first - second


def _gain(model: str) -> Sum:
  """Returns what a model gains from 9M images to all."""
  return EARLY_STOPPED(start(model)) - EARLY_STOPPED(start(model, FEW))


def _figure4_claims(scale: str) -> list[Claim]:
  """What changes as models see more different images."""
  (small, resnet), large = rivals(scale), 'ViT-L/32'
  early, late = (_lead(large, small, images) for images in (FEW, ALL))
  found = []
  for key, bit, vit in (
    ('small', resnet, small),
    ('large', 'BiT-R152x2', 'ViT-L/16'),
  ):
    found += [
      Claim(
        f'resnet_first_{key}',
        f'After pre-training on 9M images, {bit} is ahead of {vit} (4.3,'
        ' Figure 4).',
        {f'lead of {bit} on 9M images': _lead(bit, vit, FEW)},
        f'{computes(scale, bit, vit)} All pre-trainings on a part of'
        ' the images see the same part.',
      ),
      Claim(
        f'vit_later_{key}',
        f'After pre-training on 90M images, and on all images, {vit} is ahead'
        f' of {bit} (4.3, Figure 4).',
        {
          f'lead of {vit} on {NAMES[images]}': _lead(vit, bit, images)
          for images in (MANY, ALL)
        },
      ),
    ]
  found += [
    Claim(
      'resnets_level_off',
      'ResNets level off sooner than ViTs: from 9M images to all images,'
      f' {resnet} gains less than {small} (4.3, Figure 4).',
      {f'gain of {small} minus that of {resnet}': _gain(small) - _gain(resnet)},
    ),
    Claim(
      'larger_needs_data',
      f'A larger ViT pays off only with more images: the lead of {large} over'
      f' {small} grows from 9M images to all images (4.3, Figure 4).',
      {'growth of the lead': late - early},
    ),
    Claim(
      'data_help',
      'Each model is better after pre-training on all images than after'
      ' pre-training on 9M images (4.3, Figure 4).',
      {f'gain of {model}': _gain(model) for model in (small, large, resnet)},
    ),
  ]
  return claims.not_in_miniature(claims.PLATEAU, found)


def _starts(scale: str) -> dict[tuple[str, int | None], Pretraining]:
  if structure(scale) == 'paper':
    return {(m, n): start(m, n) for m in MODELS for n in IMAGES}
  tested = {mean.start for c in _figure4_claims(scale) for mean in c.means()}
  return {
    (model, images): one
    for model in (*MODELS, RESNET['mini'])
    for images in IMAGES
    if (one := start(model, images)) in tested or model not in _LARGE
  }


FIGURE4 = figure(
  'figure4',
  'Few-shot accuracy by number of pre-training images',
  lambda results: [
    (model, images or 300_000_000, EARLY_STOPPED(one).number(results))
    for (model, images), one in _starts(results.scale).items()
  ],
  lambda results: {
    'x_label': 'Number of JFT-300M images'
    if results.comparable
    else 'JFT-300M images\n(pre-training images, in proportion)',
    'y_label': 'Linear 5-shot ImageNet top-1 (%)',
    'log_x': True,
    'x_ticks': [images or 300_000_000 for images in IMAGES],
  },
  caption='Models are pre-trained on random subsets of JFT-300M and on all of'
  ' it, with the same settings. The few-shot accuracy is that of the step that'
  ' was most accurate on held-out pre-training images (early stopping, as in'
  ' the paper).',
  shown=lambda scale: [*_starts(scale).values()],
  claims=_figure4_claims,
  notes=lambda results: [
    _COUNTS[structure(results.scale)],
    'The paper does not say for how many steps it pre-trained on the subsets of'
    ' JFT-300M. Here, they are as many as on all images.',
  ],
  curves=True,
)


# The smallest ResNet and the largest ViT. -------------------------------------

_SMALLEST, _LARGEST = 'BiT-R50x1', 'ViT-L/16'
_CELLS = {
  (model, NAMES[images]): EARLY_STOPPED(start(model, images))
  for model in MODELS
  for images in (FEW, ALL)
}


_EXTREMES = [
  Claim(
    'smallest_first',
    f'On 9M images, even the smallest ResNet, {_SMALLEST}, is ahead of the'
    f' largest ViT, {_LARGEST} (Figure 4).',
    {f'lead of {_SMALLEST} on 9M images': _lead(_SMALLEST, _LARGEST, FEW)},
  ),
  Claim(
    'largest_last',
    f'On all images, the largest ViT, {_LARGEST}, is ahead of all other'
    ' models (Figure 4).',
    {
      f'lead over {model} on all images': _lead(_LARGEST, model, ALL)
      for model in MODELS
      if model != _LARGEST
    },
  ),
]

EXTREMES = table(
  'extremes',
  'The smallest ResNet and the largest ViT, by number of images',
  _CELLS,
  heading='5-shot accuracy on ImageNet, in percent',
  claims=claims.not_in_miniature(claims.PLATEAU, _EXTREMES),
  notes=['The runs are those of Figure 4, at the step that validates best.'],
)


# ViTs overfit more than ResNets on little data. -------------------------------

_TRAIN = of_run('accuracy on training images in percent', 'train/accuracy')
_HELD_OUT = of_run(
  'accuracy on held-out images in percent', 'validation/accuracy'
)
_GAP = claims.difference(
  'accuracy on training images minus that on held-out ones, in points',
  _TRAIN,
  _HELD_OUT,
)


def _overfitting_claims(scale: str) -> list[Claim]:
  vit, resnet = rivals(scale)
  few, every, of_resnet, _ = map(_GAP, few_and_all(scale).values())
  found = [
    Claim(
      'vits_overfit_more',
      'On 9M images, ViTs overfit more than ResNets of comparable compute: the'
      f' gap of accuracy between training and held-out images is larger for'
      f' {vit} than for {resnet} (4.3).',
      {f'gap of {vit} minus that of {resnet}': few - of_resnet},
    ),
    Claim(
      'data_cure_it',
      f'On all images, the gap of {vit} is smaller than on 9M images (4.3).',
      {'gap on 9M images minus that on all': few - every},
    ),
  ]
  return claims.not_in_miniature(claims.PLATEAU, found)


OVERFITTING = table(
  'overfitting',
  'Accuracy on training and on held-out images, by number of images',
  lambda scale: grid(
    few_and_all(scale),
    {'training': _TRAIN, 'held out': _HELD_OUT, 'gap': _GAP},
  ),
  heading='Accuracy of pre-training, in percent',
  claims=_overfitting_claims,
  notes=[
    'Both accuracies are of the last step, without early stopping. That on'
    ' training images is a mean over batches, each before its own step.'
  ],
)

"""Figure 4: few-shot accuracy by number of pre-training images (4.3)."""

from vit_jax.paper import claims
from vit_jax.paper.claims import EARLY_STOPPED, Claim, Sum
from vit_jax.paper.item import figure
from vit_jax.paper.items import subsets
from vit_jax.paper.items.subsets import ALL, FEW, MANY, start
from vit_jax.paper.runs import Pretraining, structure

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


def _claims(scale: str) -> list[Claim]:
  """What changes as models see more different images."""
  (small, resnet), large = subsets.rivals(scale), 'ViT-L/32'
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
        f'{subsets.computes(scale, bit, vit)} All pre-trainings on a part of'
        ' the images see the same part.',
      ),
      Claim(
        f'vit_later_{key}',
        f'After pre-training on 90M images, and on all images, {vit} is ahead'
        f' of {bit} (4.3, Figure 4).',
        {
          f'lead of {vit} on {subsets.NAMES[images]}': _lead(vit, bit, images)
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
    return {(m, n): start(m, n) for m in subsets.MODELS for n in subsets.IMAGES}
  tested = {mean.start for c in _claims(scale) for mean in c.means()}
  return {
    (model, images): one
    for model in (*subsets.MODELS, subsets.RESNET['mini'])
    for images in subsets.IMAGES
    if (one := start(model, images)) in tested or model not in _LARGE
  }


ITEM = figure(
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
    'x_ticks': [images or 300_000_000 for images in subsets.IMAGES],
  },
  caption='Models are pre-trained on random subsets of JFT-300M and on all of'
  ' it, with the same settings. The few-shot accuracy is that of the step that'
  ' was most accurate on held-out pre-training images (early stopping, as in'
  ' the paper).',
  shown=lambda scale: [*_starts(scale).values()],
  claims=_claims,
  notes=lambda results: [
    _COUNTS[results.structure],
    'The paper does not say for how many steps it pre-trained on the subsets of'
    ' JFT-300M. Here, they are as many as on all images.',
  ],
  curves=True,
)

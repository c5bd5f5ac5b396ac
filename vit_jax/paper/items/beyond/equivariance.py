"""Beyond the paper: do features move with the image?

`translation` counts answers, which are the same if features are invariant.
Equivariant features move with the image. The paper says that it is built into
ResNets (1, 3.1).
"""

import functools

from vit_jax.paper.claims import Claim, inside
from vit_jax.paper.inside import maps, shifting, weights
from vit_jax.paper.item import grid, table
from vit_jax.paper.items import subsets


@functools.cache  # Both numbers come from the same features.
def _moved(workdir: str) -> tuple[float, float]:
  patch = shifting.patch_of(weights.load(workdir).image_size[0])
  return maps.moved(workdir, patch)


def along(workdir: str) -> float:
  """Returns the change of features that move with the image, in percent."""
  return _moved(workdir)[0]


def at_place(workdir: str) -> float:
  """Returns the change of features at the same place, in percent."""
  return _moved(workdir)[1]


_COLUMNS = {
  'moved along': inside(
    f'{__name__}:along',
    'change of features that move with the image, in percent',
    1,
  ),
  'same place': inside(
    f'{__name__}:at_place',
    'change of features at the same place, in percent',
    1,
  ),
}


def _claims(scale: str) -> list[Claim]:
  vit, resnet = subsets.rivals(scale)
  few, every, _, of_resnet = map(
    _COLUMNS['moved along'], subsets.few_and_all(scale).values()
  )
  return [
    Claim(
      'resnet_is_equivariant',
      f'Beyond the paper: features of {resnet} move with the image more exactly'
      f' than those of {vit}, after pre-training on all images.',
      {f'change of {vit} minus that of {resnet}': every - of_resnet},
    ),
    Claim(
      'vit_learns_it',
      f'Beyond the paper: features of {vit} move with the image more exactly'
      ' after pre-training on all images than on 9M images (arXiv:2210.02984).',
      {'change after 9M images minus that after all': few - every},
    ),
  ]


ITEM = table(
  'equivariance',
  'Features of shifted images, by number of pre-training images',
  lambda scale: grid(subsets.few_and_all(scale), _COLUMNS),
  heading='Change in percent',
  claims=_claims,
  notes=[
    'Images are rolled by a patch of 32 px at 224 px. A change of 100 is as'
    ' large as the difference of features of different images. The features of'
    ' a ResNet are those of its last stage; in miniature, of an earlier one.'
  ],
  beyond=True,
)

"""Positions matter more when tokens are small (D.4); 2x2 patches (Section 2).

The paper explains Table 8 by the number of tokens: its models see 14x14 patches
and not 224x224 pixels, so it is easy to learn positions in any form.
"""

from vit_jax.paper.claims import FIVE_SHOT, Claim, Mean
from vit_jax.paper.item import table
from vit_jax.paper.runs import Pretraining, structure

# Structure -> side of the images; with patches of 2 px, there are 16x16 and
# 12x12 tokens. 2x2 patches of small images are those of Cordonnier et al. 2020.
_SIDE = {'paper': 32, 'mini': 24}
_KINDS = {'None': 'none', '1-D': '1d', '2-D': '2d'}
_SIZES = ('large patches', '2x2 patches')
_EPOCHS = {'paper': 7, 'mini': 28}


def _start(scale: str, kind: str, size: str) -> Pretraining:
  """Returns the first run with a kind of positions and a size of patches."""
  which = structure(scale)
  side = _SIDE[which]
  # A quarter of the side as the other patch: 4x4 tokens.
  patch = 2 if size == '2x2 patches' else side // 4
  options = {
    'model.position_embedding': _KINDS[kind],
    'image_size': (side, side),
    'model.patch_size': (patch, patch),
  }
  if scale == 'paper':
    # A crop of images of 256 px would show only their middle.
    for name in ('few_shot', 'validation'):
      options[f'evals.{name}.preprocess'] = 'resize'
  return Pretraining(
    'ViT-B/32',
    epochs=_EPOCHS[which],
    options=tuple(options.items()),
    label=f'{side} px, patches of {patch} px, {kind} position',
  )


def _cells(scale: str) -> dict[tuple[str, str], Mean]:
  return {
    (f'{kind} position', size): FIVE_SHOT(_start(scale, kind, size))
    for kind in _KINDS
    for size in _SIZES
  }


def _claims(scale: str) -> list[Claim]:
  _, _, one_large, one, two_large, two = (found := _cells(scale)).values()
  none = found['None position', '2x2 patches']
  return [
    Claim(
      'matter_for_small_patches',
      'With patches of 2x2 pixels, a ViT without position embeddings is worse'
      ' than one with 1-D or 2-D embeddings (after D.4).',
      {'lead of 1-D': one - none, 'lead of 2-D': two - none},
    ),
    Claim(
      'kinds_differ_more',
      'With patches of 2x2 pixels, 2-D embeddings are ahead of 1-D embeddings'
      ' by more than with large patches (after D.4).',
      {
        'lead of 2-D over 1-D with small patches minus that with large ones': (
          (two - one) - (two_large - one_large)
        )
      },
    ),
  ]


ITEM = table(
  'pixels',
  'Position embeddings with patches of 2x2 pixels',
  _cells,
  heading='5-shot accuracy on ImageNet, in percent',
  claims=_claims,
  notes=lambda results: [
    f'Large patches are a quarter of the images, which have'
    f' {_SIDE[results.structure]} px. The paper gives this explanation, but'
    ' does not test it.'
  ],
)

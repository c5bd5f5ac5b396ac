"""The paper's claims about Figures 4, 8, 9 and 13: few-shot accuracy."""

import math
from collections.abc import Sequence

from vit_jax.configs import midi, mini
from vit_jax.paper import cost, numbers
from vit_jax.paper.claims.claim import Claim, Contrast, Sum, total
from vit_jax.paper.claims.measures import EarlyStopped, FewShot
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, structure
from vit_jax.sweep.spec import Value

EPOCHS = 7
# Numbers of images in Figure 4; None is the whole set.
IMAGES = (9_000_000, 30_000_000, 90_000_000, None)
_FEW, _, _MANY, _ALL = IMAGES
_NAMES = {_FEW: '9M images', _MANY: '90M images', _ALL: 'all images'}
# The ResNet to compare with ViT-B/32. By Table 6, BiT-R50x1 has 50 exaFLOPs and
# ViT-B/32 has 55; in miniature, BiT-R50x1 has only a fifth of the operations of
# ViT-B/32, and BiT-R50x2 two thirds.
RESNET = {'paper': 'BiT-R50x1', 'mini': 'BiT-R50x2'}
# The base model of Figure 8 (D.2), from which all others differ in some
# dimension. The paper does not print the heads; here they are as wide as in
# Table 1, except for ViT-H.
SHAPE = {'depth': 8, 'width': 1024, 'mlp_dim': 2048, 'heads': 16}
# Scale -> the paper's number of blocks -> that of a miniature.
DEPTHS = {'mini': mini.MINI.depths, 'midi': midi.MIDI.depths}
_DEPTHS_ABOUT = {
  'paper': '',
  'mini': 'In miniature, 4, 16 and 64 blocks are 1, 3 and 5, which count as 1.6'
  ' and 0.7 doublings.',
}
# D.3: the mean over patches had a linear head, unlike the class token.
_POOLING = (('model.pooling', 'gap'), ('model.representation_size', 0))
# The curves of Figure 9.
CURVES = {
  'CLS-Token, lr=8e-4': ((), ''),
  'GAP, lr=8e-4': (_POOLING, 'GAP, lr 8e-4'),
  'GAP, lr=3e-4': ((*_POOLING, ('schedule.peak', 3e-4)), 'GAP, lr 3e-4'),
}


# In miniature, models without a class token, and axial ones, learn positions
# later: with a quarter of these epochs they know only colours (LOG.md).
_EPOCHS_9 = _EPOCHS_13 = {'paper': EPOCHS, 'mini': 28}


def run(
  model: str,
  options: Sequence[tuple[str, Value]] = (),
  label: str = '',
  images: int | None = None,
  epochs: float = EPOCHS,
) -> Pretraining:
  """Returns the first run of a point of Figures 4, 9 or 13."""
  return Pretraining(
    model,
    values.JFT,
    epochs,
    options=tuple(options),
    label=label,
    images=images,
  )


_SAME_IMAGES = 'All pre-trainings on a part of the images see the same part.'


def computes(scale: str, *models: str) -> str:
  """Returns a sentence on the compute of models on all images."""
  found = [
    numbers.EXAFLOPS[f'{model}, {EPOCHS} epochs'].value
    if scale == 'paper'
    else cost.teraflops_in_miniature(run(model), scale)
    for model in models
  ]
  parts = [
    f'{model} {compute:.3g} {cost.UNITS[scale]}'
    for model, compute in zip(models, found, strict=True)
  ]
  return f'Compute: {", ".join(parts)}.'


def figure4(scale: str) -> list[Claim]:
  """What changes as models see more different images (4.3)."""
  small, large = 'ViT-B/32', 'ViT-L/32'
  pairs = ((RESNET[structure(scale)], small), ('BiT-R152x2', 'ViT-L/16'))

  def at(model: str, images: int | None) -> Sum:
    return total(EarlyStopped(), run(model, images=images))

  def lead(one: str, other: str, images: int | None) -> Sum:
    return at(one, images) - at(other, images)

  def gain(model: str, few: int, many: int | None) -> Sum:
    return at(model, many) - at(model, few)

  models = (small, large, RESNET[structure(scale)])
  found = []
  for key, (resnet, vit) in zip(('small', 'large'), pairs, strict=True):
    found += [
      Claim(
        f'resnet_first_{key}',
        f'After pre-training on 9M images, {resnet} is ahead of {vit} (4.3,'
        ' Figure 4).',
        (Contrast(f'lead of {resnet} on 9M images', lead(resnet, vit, _FEW)),),
        f'{computes(scale, resnet, vit)} {_SAME_IMAGES}',
      ),
      Claim(
        f'vit_later_{key}',
        f'After pre-training on 90M images, and on all images, {vit} is ahead'
        f' of {resnet} (4.3, Figure 4).',
        tuple(
          Contrast(
            f'lead of {vit} on {_NAMES[images]}', lead(vit, resnet, images)
          )
          for images in (_MANY, _ALL)
        ),
      ),
    ]
  return [
    *found,
    Claim(
      'resnets_level_off',
      'ResNets level off sooner than ViTs: from 9M images to all images,'
      f' {RESNET[structure(scale)]} gains less than {small} (4.3, Figure 4).',
      (
        Contrast(
          f'gain of {small} minus that of {RESNET[structure(scale)]}',
          gain(small, _FEW, _ALL) - gain(RESNET[structure(scale)], _FEW, _ALL),
        ),
      ),
    ),
    Claim(
      'larger_needs_data',
      f'A larger ViT pays off only with more images: the lead of {large} over'
      f' {small} grows from 9M images to all images (4.3, Figure 4).',
      (
        Contrast(
          'growth of the lead',
          lead(large, small, _ALL) - lead(large, small, _FEW),
        ),
      ),
    ),
    Claim(
      'data_help',
      'Each model is better after pre-training on all images than after'
      ' pre-training on 9M images (4.3, Figure 4).',
      tuple(
        Contrast(f'gain of {model}', gain(model, _FEW, _ALL))
        for model in models
      ),
    ),
  ]


def shape(label: str, model: str = 'ViT-L/32', **changes: Value) -> Pretraining:
  """Returns the first run of a point of Figure 8: the base with `changes`."""
  return Pretraining(
    model,
    values.JFT,
    EPOCHS,
    options=tuple(
      (f'model.{key}', value) for key, value in (SHAPE | changes).items()
    ),
    label=label,
    few_shot='several',
  )


def depth(blocks: int) -> Pretraining:
  """Returns the first run of Figure 8 with some number of blocks."""
  return shape(f'depth {blocks}', depth=blocks)


def _doublings(scale: str, less: int, more: int) -> float:
  """Returns how often a depth of the paper is doubled at a scale."""
  if scale in DEPTHS:
    depths = DEPTHS[scale]
    less, more = depths[less], depths[more]
  return math.log2(more / less)


def figure8(scale: str) -> list[Claim]:
  """How the dimensions of a ViT should be scaled (D.2)."""
  measure = FewShot(average=scale == 'mini')

  def of(start: Pretraining) -> Sum:
    return total(measure, start)

  def blocks(count: int) -> Sum:
    return of(depth(count))

  def gain(less: int, more: int) -> Sum:
    """Returns what a doubling of the depth gains."""
    return (1 / _doublings(scale, less, more)) * (blocks(more) - blocks(less))

  narrow = of(shape('width 512', width=512, heads=8))
  wide = of(shape('width 2048', width=2048, heads=32))
  fine = of(shape('depth 8', model='ViT-L/16'))
  return [
    Claim(
      'depth',
      'Deeper models are better at the same width: 16 and 32 blocks are better'
      ' than 4 (D.2, Figure 8).',
      tuple(
        Contrast(f'gain from 4 to {count} blocks', blocks(count) - blocks(4))
        for count in (16, 32)
      ),
    ),
    Claim(
      'diminishing',
      'Beyond 16 blocks, more depth helps less: per doubling of the depth, the'
      ' gain is smaller between 16 and 64 blocks than between 4 and 16 (D.2,'
      ' Figure 8).',
      (
        Contrast(
          'gain of a doubling from 4 to 16 blocks minus that from 16 to 64',
          gain(4, 16) - gain(16, 64),
        ),
      ),
      _DEPTHS_ABOUT[structure(scale)],
    ),
    Claim(
      'width',
      'Width helps least: a doubling of the width, between 512 and 2048, raises'
      ' the accuracy less than a doubling of the depth, between 4 and 16 blocks'
      ' (D.2, Figure 8).',
      (
        Contrast(
          'gain of a doubling of the depth minus that of the width',
          gain(4, 16) - 0.5 * (wide - narrow),
        ),
      ),
      'Doubling the width costs more compute than doubling the depth, which'
      f' favours the width. {_DEPTHS_ABOUT[structure(scale)]}'.strip(),
    ),
    Claim(
      'patches',
      'Smaller patches help, although they add no parameters (D.2, Figure 8).',
      (Contrast('gain from patches of 32 px to 16 px', fine - blocks(8)),),
    ),
  ]


def curves(scale: str) -> dict[str, Pretraining]:
  """Returns the first run of each curve of Figure 9."""
  return {
    label: run('ViT-B/16', *of, epochs=_EPOCHS_9[structure(scale)])
    for label, of in CURVES.items()
  }


def figure9(scale: str) -> list[Claim]:
  """A mean over patches does as well as a class token (D.3)."""
  token, high, low = (
    total(FewShot(), start) for start in curves(scale).values()
  )
  return [
    Claim(
      'lower_rate',
      'A ViT with global average pooling needs a lower learning rate than a ViT'
      ' with a class token. At the same rate, the ViT with pooling is less'
      ' accurate. At a lower rate, the ViT with pooling makes up more than half'
      ' of this difference (D.3, Figure 9).',
      (
        Contrast(
          'lead of the class token over the mean at the same rate', token - high
        ),
        Contrast(
          'mean at the lower rate, minus the middle of both',
          low - 0.5 * (token + high),
        ),
      ),
    )
  ]


def axial(scale: str, model: str) -> Pretraining:
  """Returns the first run of a model of Figure 13."""
  return run(model, epochs=_EPOCHS_13[structure(scale)])


def figure13(scale: str) -> list[Claim]:
  """Axial ViTs are better than the ViTs they are made of (D.6)."""

  def of(model: str) -> Sum:
    return total(FewShot(), axial(scale, model))

  return [
    Claim(
      'axial',
      'Axial ViTs are better than the ordinary ViTs that they are derived from'
      ' (D.6, Figure 13).',
      tuple(
        Contrast(
          f'lead of Axial-{vit}',
          of(f'Axial-{vit}') - of(vit),
        )
        for vit in ('ViT-B/32', 'ViT-B/16')
      ),
    )
  ]

"""The paper's claims about few-shot accuracy, tested on our numbers.

They are from Sections 4.3, D.2, D.3 and D.6. Accuracies are means over several
seeds, so that differences have a spread; a single run decides nothing.
"""

import types
from collections.abc import Mapping, Sequence

from vit_jax.paper.claims import compare, decide, every, text
from vit_jax.paper.report import Claim, Number

_SMALL, _LARGE = 'ViT-B/32', 'ViT-L/32'
# The ViT that Figure 4's claims compare with a ResNet of about its compute.
VIT = _SMALL
_UNIT = '5-shot accuracy on ImageNet in percent'


def by_data(
  points: Mapping[tuple[str, int], Number],
  *,
  resnet: str,
  models: Sequence[str],
  few: int,
  many: int,
  computes: Mapping[str, float] = types.MappingProxyType({}),
  unit: str = 'exaFLOPs',
) -> list[Claim]:
  """Figure 4: what changes as models see more different images (4.3).

  Args:
    points: (model, number of images) -> accuracy in percent.
    resnet: the ResNet to compare with `VIT`; it has about the same compute.
    models: the models with several runs; for each we test whether data help.
    few: the smallest number of images.
    many: the largest number of images.
    computes: `resnet` and `VIT` -> operations of one run, as far as known.
    unit: of `computes`.
  """
  convolved, small, large = (
    (points.get((model, few)), points.get((model, many)))
    for model in (resnet, _SMALL, _LARGE)
  )
  compute = _compute(resnet, computes, unit)
  return [
    Claim(
      'On the smallest set a ResNet is ahead of a ViT of about the same compute'
      f' ({resnet}, {_SMALL}; 4.3, Figure 4).',
      compare(convolved[0], small[0]),
      f'{_UNIT}: {_pair(few, resnet, convolved[0], _SMALL, small[0])}.'
      f'{compute}',
    ),
    Claim(
      'This lead of the ResNet shrinks, or reverses, as the set grows (4.3,'
      ' Figure 4).',
      _grows(small, convolved),
      _pairs((few, many), resnet, convolved, _SMALL, small) + compute,
    ),
    Claim(
      f'A larger ViT pays off only with more data: the lead of {_LARGE} over'
      f' {_SMALL} is larger with all images than with the fewest (4.3, Figure'
      ' 4).',
      _grows(large, small),
      _pairs((few, many), _LARGE, large, _SMALL, small),
    ),
    *_more_data_help(points, models, few, many),
  ]


def depth_helps(depths: Mapping[int, Number]) -> Claim:
  """Figure 8: deeper models are better at the same width (D.2).

  The evidence shows the diminishing return beyond 16 blocks, but no test does:
  there is only a single run with 64 blocks.

  Args:
    depths: number of blocks -> accuracy as a fraction.
  """
  measured = [f'{depth}: {text(depths[depth], 4)}' for depth in sorted(depths)]
  steps = [
    f'{less} to {more} blocks {depths[more].mean - depths[less].mean:+.4f}'
    for less, more in ((4, 16), (16, 32), (16, 64))
    if {less, more} <= {*depths}
  ]
  evidence = f'5-shot accuracy on ImageNet by depth: {_listed(measured)}.'
  if steps:
    evidence += f' From {_listed(steps)}.'
  return Claim(
    'Deeper models are better at the same width: 16 and 32 blocks are better'
    ' than 4 (D.2, Figure 8).',
    every(
      [
        compare(depths.get(16), depths.get(4), parts=2),
        compare(depths.get(32), depths.get(4), parts=2),
      ]
    ),
    evidence,
  )


def pooling_needs_a_lower_rate(
  token: Number | None, high: Number | None, low: Number | None
) -> Claim:
  """Figure 9: a mean of patches does as well as a class token (D.3).

  The answer is 'yes' if the mean is better at its lower learning rate than at
  the class token's, and is then ahead of the class token. No test can show that
  both are exactly as good, so runs without a clear difference do not decide.

  Args:
    token: accuracy of the class token in percent.
    high: accuracy of the mean at the class token's learning rate.
    low: accuracy of the mean at a lower learning rate.
  """
  numbers = (token, high, low)
  evidence = (
    f'{_UNIT}: class token {text(token, 2)}; mean over patches {text(high, 2)}'
    f' at the same learning rate, {text(low, 2)} at the lower one.'
  )
  if any(number and number.std is None for number in numbers):
    evidence += ' The spread of a single run is not known.'
  return Claim(
    'The mean over patches with a linear head does as well as a class token, if'
    ' its learning rate is lower (D.3, Figure 9).',
    every([compare(low, other, parts=2) for other in (high, token)]),
    evidence,
  )


def _more_data_help(
  points: Mapping[tuple[str, int], Number],
  models: Sequence[str],
  few: int,
  many: int,
) -> list[Claim]:
  ends = {
    model: (points.get((model, few)), points.get((model, many)))
    for model in models
  }
  changes = '; '.join(
    f'{model} {text(least, 2)} to {text(most, 2)}'
    for model, (least, most) in ends.items()
  )
  evidence = (
    f'{_UNIT}, from {few / 1e6:g}M images to {many / 1e6:g}M: {changes}.'
  )
  gains = [
    (sign / len(ends), number)
    for least, most in ends.values()
    for sign, number in ((1.0, most), (-1.0, least))
  ]
  if None not in (number for _, number in gains):
    gain = sum(weight * number.mean for weight, number in gains)
    average = f'{evidence} On average {gain:+.2f}.'
  else:
    average = evidence
  return [
    Claim(
      'Each model is better with all images than with the fewest (4.3, Figure'
      ' 4).',
      every(
        [compare(most, least, parts=len(ends)) for least, most in ends.values()]
      ),
      evidence,
    ),
    Claim(
      'On average over these models, all images are better than the fewest'
      ' (4.3, Figure 4).',
      decide(gains),
      average,
    ),
  ]


def axial_is_ahead(found: Mapping[str, Number | None]) -> Claim:
  """Figure 13: axial ViTs are better than the ViTs they are made of (D.6).

  Args:
    found: model -> accuracy in percent.
  """
  vits = ('ViT-B/32', 'ViT-B/16')
  answers = [
    compare(found[f'Axial-{vit}'], found[vit], parts=len(vits)) for vit in vits
  ]
  evidence = [
    f'{model} {text(found[model], 2)}'
    for vit in vits
    for model in (f'Axial-{vit}', vit)
  ]
  return Claim(
    'Axial ViTs are better than the ViTs that they are made of (D.6, Figure'
    ' 13).',
    every(answers),
    f'{_UNIT}: {", ".join(evidence)}.',
  )


def _grows(
  one: tuple[Number | None, Number | None],
  other: tuple[Number | None, Number | None],
) -> str:
  """Whether one's lead over the other is larger in the end than at first."""
  return decide(
    [(1.0, one[1]), (-1.0, other[1]), (-1.0, one[0]), (1.0, other[0])]
  )


def _compute(resnet: str, computes: Mapping[str, float], unit: str) -> str:
  """Returns a sentence on both models' compute; '' unless both are known."""
  compared = (resnet, VIT)
  if not {*compared} <= {*computes}:
    return ''
  listed = ', '.join(
    f'{model} {computes[model]:,.3g} {unit}' for model in compared
  )
  ratio = computes[VIT] / computes[resnet]
  return (
    f' Compute of these runs: {listed}; the ViT has {ratio:.2g} times that of'
    ' the ResNet.'
  )


def _pairs(
  images: tuple[int, int],
  one: str,
  ones: tuple[Number | None, Number | None],
  other: str,
  others: tuple[Number | None, Number | None],
) -> str:
  pairs = '; '.join(
    _pair(count, one, a, other, b)
    for count, a, b in zip(images, ones, others, strict=True)
  )
  return f'{_UNIT}: {pairs}.'


def _pair(
  images: int, one: str, a: Number | None, other: str, b: Number | None
) -> str:
  evidence = (
    f'{images / 1e6:g}M images: {one} {text(a, 2)}, {other} {text(b, 2)}'
  )
  if a is not None and b is not None:
    evidence += f', difference {a.mean - b.mean:+.2f}'
  return evidence


def _listed(words: Sequence[str]) -> str:
  return ', '.join(words) or 'missing'

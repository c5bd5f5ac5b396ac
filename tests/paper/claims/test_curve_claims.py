"""Guards: the answers to claims on few-shot accuracy follow the numbers."""

import pytest

from tests.paper.drawn import number
from vit_jax.paper.claims import UNDECIDED, curve_claims

FEW, MANY = 9_000_000, 300_000_000
MODELS = ('ViT-L/32', 'ViT-B/32', 'BiT-R50x1')


def _runs(mean):
  """Returns three runs with a standard deviation of 1.

  Two such means differ significantly from 2.776 * sqrt(2 / 3) = 2.27 on, and
  two differences of means from 2.306 * sqrt(4 / 3) = 2.66 on.
  """
  return number(mean - 1, mean, mean + 1)


def _points(**changes):
  """Returns accuracies of three models by images, ordered as in the paper."""
  means = dict(
    resnet_few=40, resnet_many=55, small_few=30, small_many=60, large_few=25
  )
  means |= dict(large_many=66) | changes
  names = dict(resnet='BiT-R50x1', small='ViT-B/32', large='ViT-L/32')
  points = {}
  for key, mean in means.items():
    name, _, images = key.partition('_')
    if mean is not None:
      place = names[name], {'few': FEW, 'many': MANY}[images]
      points[place] = _runs(mean)
  return points


def _by_data(points):
  return curve_claims.by_data(
    points, resnet='BiT-R50x1', models=MODELS, few=FEW, many=MANY
  )


def _answers(**changes):
  return [claim.answer for claim in _by_data(_points(**changes))][:4]


@pytest.mark.parametrize(
  ('changes', 'expected'),
  [
    ({}, ['yes', 'yes', 'yes', 'yes']),
    # The ResNet is behind at first, by 5 and then by 15.
    (dict(resnet_few=25, resnet_many=45), ['no', 'yes', 'yes', 'yes']),
    # The ResNet is ahead by 10, then by 20.
    (dict(resnet_many=80), ['yes', 'no', 'yes', 'yes']),
    # The large ViT is ahead by 15, then by 6.
    (dict(large_few=45), ['yes', 'yes', 'no', 'yes']),
    # Each model loses 10 with more images.
    (
      dict(resnet_many=30, small_many=20, large_many=15),
      ['yes', UNDECIDED, UNDECIDED, 'no'],
    ),
    # Two models lose with more images, one gains.
    (dict(small_many=25, resnet_many=30), ['yes', 'yes', 'yes', 'no']),
    (dict(resnet_few=32.2), [UNDECIDED, 'yes', 'yes', 'yes']),
    (dict(resnet_few=32.3), ['yes', 'yes', 'yes', 'yes']),
    (dict(resnet_many=67.4), ['yes', UNDECIDED, 'yes', 'yes']),
    (dict(resnet_many=67.3), ['yes', 'yes', 'yes', 'yes']),
    (dict(large_few=None), ['yes', 'yes', 'missing', 'missing']),
    (dict(resnet_many=None), ['yes', 'missing', 'yes', 'missing']),
  ],
)
def test_claims_about_data_follow_the_numbers(changes, expected):
  assert _answers(**changes) == expected


@pytest.mark.parametrize(
  ('gains', 'expected'),
  [
    # A mean of three gains is significant from 2.179 * sqrt(2 / 9) = 1.027 on.
    ((1.0, 1.0, 1.1), 'yes'),
    ((1.0, 1.0, 1.0), UNDECIDED),
    # One model may lose.
    ((-2.0, 3.0, 3.0), 'yes'),
    ((-3.0, 0.0, -3.0), 'no'),
    ((None, 3.0, 3.0), 'missing'),
  ],
)
def test_the_claim_about_more_images_compares_averages(gains, expected):
  resnet, small, large = gains
  points = _points(
    resnet_many=resnet and 40 + resnet,
    small_many=30 + small,
    large_many=25 + large,
  )
  if resnet is None:
    del points['BiT-R50x1', FEW]
  *_, claim = _by_data(points)
  assert claim.answer == expected
  if expected != 'missing':
    assert claim.evidence.endswith(f' On average {sum(gains) / 3:+.2f}.')


def test_without_runs_claims_about_data_are_missing():
  claims = _by_data({})
  assert [claim.answer for claim in claims] == ['missing'] * 5
  assert claims[0].evidence == (
    '5-shot accuracy on ImageNet in percent: 9M images: BiT-R50x1 missing,'
    ' ViT-B/32 missing.'
  )


def test_evidence_states_the_compute_if_both_are_known():
  def answered(**computes):
    return curve_claims.by_data(
      _points(),
      resnet='BiT-R50x1',
      models=MODELS,
      few=FEW,
      many=MANY,
      computes={k.replace('_', '/'): v for k, v in computes.items()},
    )

  both = answered(**{'BiT-R50x1': 50.2, 'ViT-B_32': 55.7})
  words = (
    ' Compute of these runs: BiT-R50x1 50.2 exaFLOPs, ViT-B/32 55.7 exaFLOPs;'
    ' the ViT has 1.1 times that of the ResNet.'
  )
  assert [c.evidence.endswith(words) for c in both] == [
    *(True, True, False, False, False)
  ]
  one = answered(**{'BiT-R50x1': 0.2})
  assert not any('FLOPs' in claim.evidence for claim in one)
  assert 'of about the same compute (BiT-R50x1, ViT-B/32;' in one[0].statement


def test_single_runs_decide_nothing_about_data():
  points = {place: number(n.mean) for place, n in _points().items()}
  assert [c.answer for c in _by_data(points)] == [UNDECIDED] * 5


def test_evidence_states_both_differences_and_their_means():
  fewest, lead, larger, more, _ = (c.evidence for c in _by_data(_points()))
  assert fewest == (
    '5-shot accuracy on ImageNet in percent: 9M images: BiT-R50x1 40.00 ± 1.00'
    ' (3 runs), ViT-B/32 30.00 ± 1.00 (3 runs), difference +10.00.'
  )
  assert lead.endswith(
    'difference +10.00; 300M images: BiT-R50x1 55.00 ± 1.00 (3 runs), ViT-B/32'
    ' 60.00 ± 1.00 (3 runs), difference -5.00.'
  )
  assert '9M images: ViT-L/32 25.00' in larger
  assert 'difference -5.00; 300M images: ViT-L/32 66.00' in larger
  assert larger.endswith('difference +6.00.')
  assert more == (
    '5-shot accuracy on ImageNet in percent, from 9M images to 300M:'
    ' ViT-L/32 25.00 ± 1.00 (3 runs) to 66.00 ± 1.00 (3 runs);'
    ' ViT-B/32 30.00 ± 1.00 (3 runs) to 60.00 ± 1.00 (3 runs);'
    ' BiT-R50x1 40.00 ± 1.00 (3 runs) to 55.00 ± 1.00 (3 runs).'
  )


def _depths(**changes):
  means = dict(d4=0.4, d8=0.45, d16=0.5, d32=0.51) | changes
  found = {
    int(key[1:]): number(mean - 0.01, mean, mean + 0.01)
    for key, mean in means.items()
    if mean is not None
  }
  return found | {64: number(0.515)}


@pytest.mark.parametrize(
  ('changes', 'expected'),
  [
    ({}, 'yes'),
    (dict(d16=0.3), 'no'),
    (dict(d32=0.3), 'no'),
    (dict(d16=0.41), UNDECIDED),
    (dict(d32=0.41), UNDECIDED),
    (dict(d4=None), 'missing'),
    (dict(d16=None), 'missing'),
    (dict(d32=None), 'missing'),
    # Depth 8 is evidence, but does not decide.
    (dict(d8=None), 'yes'),
  ],
)
def test_depth_helps_if_16_and_32_blocks_beat_4(changes, expected):
  assert curve_claims.depth_helps(_depths(**changes)).answer == expected


def test_evidence_states_the_gain_from_more_blocks():
  claim = curve_claims.depth_helps(_depths(d8=None))
  assert claim.evidence == (
    '5-shot accuracy on ImageNet by depth: 4: 0.4000 ± 0.0100 (3 runs), 16:'
    ' 0.5000 ± 0.0100 (3 runs), 32: 0.5100 ± 0.0100 (3 runs), 64: 0.5150 (1'
    ' run). From 4 to 16 blocks +0.1000, 16 to 32 blocks +0.0100, 16 to 64'
    ' blocks +0.0150.'
  )
  claim = curve_claims.depth_helps({})
  assert claim.answer == 'missing'
  assert claim.evidence == '5-shot accuracy on ImageNet by depth: missing.'


def test_single_runs_do_not_decide_about_pooling():
  claim = curve_claims.pooling_needs_a_lower_rate(
    number(60.0), number(50.0), number(61.0)
  )
  assert claim.answer == UNDECIDED
  assert claim.evidence == (
    '5-shot accuracy on ImageNet in percent: class token 60.00 (1 run); mean'
    ' over patches 50.00 (1 run) at the same learning rate, 61.00 (1 run) at'
    ' the lower one. The spread of a single run is not known.'
  )


@pytest.mark.parametrize(
  ('token', 'high', 'low', 'expected'),
  [
    (60, 50, 65, 'yes'),
    (70, 50, 65, 'no'),
    (60, 70, 65, 'no'),
    (65, 50, 65, UNDECIDED),
  ],
)
def test_pooling_is_decided_by_several_runs(token, high, low, expected):
  claim = curve_claims.pooling_needs_a_lower_rate(
    *map(_runs, (token, high, low))
  )
  assert claim.answer == expected
  assert 'single run' not in claim.evidence


@pytest.mark.parametrize('gone', [0, 1, 2])
def test_pooling_needs_all_three_runs(gone):
  numbers = [number(60.0), number(50.0), number(61.0)]
  numbers[gone] = None
  claim = curve_claims.pooling_needs_a_lower_rate(*numbers)
  assert claim.answer == 'missing'


def test_axial_vits_must_be_ahead_at_both_patch_sizes():
  def answer(**found):
    found = {
      f'{name.replace("_", "-")}/{patch}': number(mean, mean + 0.1)
      for name, means in found.items()
      for patch, mean in zip((32, 16), means, strict=True)
    }
    return curve_claims.axial_is_ahead(found).answer

  assert answer(Axial_ViT_B=(2.0, 3.0), ViT_B=(1.0, 2.0)) == 'yes'
  assert answer(Axial_ViT_B=(2.0, 1.0), ViT_B=(1.0, 2.0)) == 'no'
  assert answer(Axial_ViT_B=(2.0, 2.0), ViT_B=(1.0, 2.0)) == UNDECIDED

"""Guards: Figure 12's claims follow from the measured speeds and batches."""

import itertools

import pytest

from vit_jax import accounting
from vit_jax.inference_speed import networks, store
from vit_jax.paper.claims import speed_answers

SPEED, MEMORY, GROWTH = range(3)


def _measured(speed, batch=lambda model, size: 100, scale='paper', left_out=()):
  """Returns measurements from functions of the model and the size."""
  return store.Measured(
    store.Settings('a device', scale, 'core', 2**30, 'float32'),
    tuple(
      store.Entry(model, size, speed(model, size), 8, batch(model, size))
      for model, size in networks.pairs((), (), scale)
      if (model, size) not in left_out
    ),
  )


def _by_pixels(model, size):
  del model
  return 1e9 / size**2


def _answers(*args, scale='paper', **options):
  found = _measured(*args, scale=scale, **options)
  return speed_answers.of_measured(found, scale)


@pytest.mark.slow  # It counts the operations of all models at both scales.
@pytest.mark.parametrize('scale', networks.SCALES)
def test_similar_models_have_about_the_same_operations(scale):
  size = networks.PRETRAINING_SIZE[scale]
  macs = {
    name: accounting.forward_macs(networks.build(name, scale), (size, size))
    for name in networks.MODELS
  }
  resnets = [name for name in macs if name.startswith('BiT')]
  found = {
    (vit, resnet)
    for vit, resnet in itertools.product({*macs} - {*resnets}, resnets)
    if 1 / 1.6 < macs[vit] / macs[resnet] < 1.6
  }
  assert found == {*speed_answers.SIMILAR[scale]}
  vits = sorted({*macs} - {*resnets}, key=macs.get)
  assert vits[-2:] == [*speed_answers.LARGEST]


@pytest.mark.parametrize('scale', networks.SCALES)
@pytest.mark.parametrize(
  ('factor', 'answer'),
  [
    *((1.9, 'seen once'), (0.6, 'seen once')),
    *((2.1, 'not seen'), (0.4, 'not seen')),
  ],
)
def test_comparable_speeds_differ_by_a_factor_of_2_at_most(
  scale, factor, answer
):
  def speed(model, size):
    return _by_pixels(model, size) * (factor if model == 'ViT-L/32' else 1)

  claim = _answers(speed, scale=scale)[SPEED]
  assert claim.answer == answer
  assert claim.evidence.startswith('a device, one sample: images a second')
  assert f'ViT-L/32 by BiT-R{"50x2" if scale == "paper" else "152x4"}' in (
    claim.evidence
  )
  assert f' {factor:.2f}' in claim.evidence


def _powers(model_power):
  """Returns speeds whose time grows with a power of the side, by interval."""

  def speed(model, size):
    time = 1.0
    for low, high in itertools.pairwise(networks.SIZES['paper']):
      if high <= size:
        time *= (high / low) ** model_power(model, high)
    return 1e6 / time

  return speed


@pytest.mark.parametrize(
  ('largest', 'elsewhere', 'answer'),
  [
    (2.2, 2.0, 'seen once'),
    (3.9, 2.9, 'seen once'),
    # It does not begin.
    (2.05, 1.9, 'not seen'),
    # It is not only there.
    (3.9, 3.1, 'not seen'),
  ],
)
def test_the_fourth_power_is_only_of_the_largest(largest, elsewhere, answer):
  def power(model, high):
    if model in ('ViT-L/16', 'ViT-H/14') and high == 512:
      return largest
    return elsewhere if (model, high) == ('ViT-H/14', 384) else 1.5

  claim = _answers(_powers(power))[GROWTH]
  assert claim.answer == answer
  assert f'{largest:.2f} for ViT-L/16 and ViT-H/14 up to 512 px' in (
    claim.evidence
  )
  assert f'most {elsewhere:.2f} elsewhere (ViT-H/14 up to 384 px)' in (
    claim.evidence
  )


def test_claims_without_their_measurements_are_missing():
  for claim in speed_answers.of_measured(None, 'mini'):
    assert claim.answer == 'missing'
    assert 'such as' in claim.evidence
  found = _answers(_by_pixels, left_out=[('BiT-R50x1', 384)])
  assert [c.answer for c in found] == ['missing', 'not seen', 'not seen']
  assert found[SPEED].evidence == (
    'Not measured yet: 1 of the speeds that it needs, such as BiT-R50x1 at 384'
    ' px.'
  )

"""Guards: strong and weak regularization have their settings and claims."""

import math

import pytest

from tests.paper import made
from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import cost, items, numbers
from vit_jax.paper.claims import regularization_claims
from vit_jax.paper.design import SCALES
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Transfer
from vit_jax.sweep import reading

ITEM = items.ITEMS['regularization']


def _results(scale, strong, weak, resnet, **options):
  """Returns results with an accuracy in percent for each model."""

  def metrics(node, seed):
    start = getattr(node, 'pretraining', node)
    mean = weak if start.label == 'weak regularization' else strong
    if start.model.startswith('BiT-'):
      mean = resnet
    return {'test/accuracy': (mean + start.seed / 10 + seed / 100) / 100}

  return made.of_item(ITEM, metrics, scale=scale, **options)


@pytest.mark.parametrize(
  ('scale', 'strong', 'weak'),
  [('paper', 0.3, 0.03), ('mini', 0.09, 0.009), ('midi', 0.3, 0.03)],
)
def test_only_regularization_differs_between_the_vits(scale, strong, weak):
  data = ',data=folder:/photos' if scale == 'midi' else ''
  sweep = reproduce.get_sweep(f'regularization,scale={scale},seeds=1{data}')
  assert len(sweep.studies) == 6
  found = []
  for study in sweep.studies[:3]:
    [run] = study.finals_of(None)
    found.append(reading.read_config(run))
  first, second, resnet = found
  assert first.model.name == second.model.name == 'ViT-B/16'
  assert (first.model.dropout_rate, second.model.dropout_rate) == (0.1, 0.0)
  assert first.optimizer.weight_decay == pytest.approx(strong)
  assert second.optimizer.weight_decay == pytest.approx(weak)
  clip = 1.0 if scale == 'paper' else 0.0
  assert first.optimizer.clip_norm == second.optimizer.clip_norm == clip
  for config in (first, second):
    config.model.dropout_rate = config.optimizer.weight_decay = 0.0
  assert first.to_dict() == second.to_dict()
  if scale == 'paper':
    assert (first.epochs, resnet.epochs) == (300, 90)
  else:
    steps = {'mini': 800, 'midi': 1801}[scale]
    assert first.total_steps == resnet.total_steps == steps
    decay = {'mini': 0.03, 'midi': 0.1}[scale]
    assert resnet.optimizer.weight_decay == pytest.approx(decay)
    # Few images: 2% of 90% of the user's.
    split = {'mini': 'train[:200]', 'midi': 'shuffled(train)[:1.8%]'}[scale]
    assert first.data.train_split == resnet.data.train_split == split


def test_the_papers_own_regularization_is_that_of_figure_3():
  strong, weak, resnet = ITEM.nodes
  assert strong == Transfer(
    Pretraining('ViT-B/16', values.IMAGENET), values.IMAGENET
  )
  assert strong in items.ITEMS['figure3'].nodes
  assert weak.name == 'ViT-B/16, ImageNet, weak regularization to ImageNet'
  assert resnet.name == 'BiT-R50x2, ImageNet to ImageNet'
  assert ITEM in items.find(['all'])


@pytest.mark.parametrize('scale', SCALES)
def test_the_resnet_is_that_of_nearest_compute(scale):
  def compute(model):
    if scale != 'paper':
      return cost.teraflops_in_miniature(Pretraining(model, epochs=7), scale)
    long = model == 'BiT-R200x3'  # It has 14 epochs only.
    row = f'{model}, {14 if long else 7} epochs'
    return numbers.EXAFLOPS[row].value / (1 + long)

  vit = compute('ViT-B/16')
  distance = {
    model: abs(math.log(compute(model) / vit))
    for model, _ in numbers.ROWS_6
    if model.startswith('BiT-')
  }
  assert len(distance) == 6
  nearest = min(distance, key=distance.get)
  assert regularization_claims.RESNETS[scale] == nearest
  assert distance[nearest] < math.log(1.5)


@pytest.mark.parametrize('scale', SCALES)
@pytest.mark.parametrize(
  ('strong', 'weak', 'resnet', 'key', 'ahead'),
  [
    (78.0, 74.0, 79.0, 'yes', 'yes'),
    (74.0, 78.0, 77.0, 'no', 'no'),
    (78.0, 76.0, 74.0, 'yes', 'no'),
    # The ResNet is behind the strong ViT, which the claim is not about.
    (78.0, 74.0, 76.0, 'yes', 'yes'),
    (74.0, 74.02, 74.0, 'undecided', 'undecided'),
  ],
)
def test_claims_follow_the_numbers(scale, strong, weak, resnet, key, ahead):
  results = _results(scale, strong, weak, resnet)
  assert made.answered(ITEM, results) == {'key': key, 'resnet_ahead': ahead}

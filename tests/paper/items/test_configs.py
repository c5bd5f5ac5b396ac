"""Guards: items that vary a setting vary no other in their configs."""

import math

import pytest

from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import cost, items
from vit_jax.paper.items.figures import shapes
from vit_jax.paper.items.tables import table6
from vit_jax.paper.items.text import transfer
from vit_jax.paper.runs import SCALES, Pretraining
from vit_jax.sweep import reading

DATA = {'midi': ',data=folder:/photos'}


def _configs(name, scale):
  """Returns the configs of an item's pre-trainings, with one seed."""
  more = DATA.get(scale, '')
  sweep = reproduce.get_sweep(f'{name},scale={scale},seeds=1{more}')
  return [
    reading.read_config(study.finals_of(None)[0])
    for study in sweep.studies
    if ' to ' not in study.name
  ]


@pytest.mark.parametrize(
  ('scale', 'strong', 'weak'),
  [('paper', 0.3, 0.03), ('mini', 0.09, 0.009), ('midi', 0.3, 0.03)],
)
def test_only_regularization_differs_between_the_vits(scale, strong, weak):
  first, second, resnet = _configs('regularization', scale)
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
    return
  steps = {'mini': 800, 'midi': 1801}[scale]
  assert first.total_steps == resnet.total_steps == steps
  decay = {'mini': 0.03, 'midi': 0.1}[scale]
  assert resnet.optimizer.weight_decay == pytest.approx(decay)
  # Few images: 2% of 90% of the user's.
  split = {'mini': 'train[:200]', 'midi': 'shuffled(train)[:1.8%]'}[scale]
  assert first.data.train_split == resnet.data.train_split == split


@pytest.mark.parametrize('scale', SCALES)
def test_the_resnet_of_regularization_is_that_of_nearest_compute(scale):
  def compute(model):
    if scale != 'paper':
      return cost.teraflops_in_miniature(Pretraining(model, epochs=7), scale)
    long = model == 'BiT-R200x3'  # It has 14 epochs only.
    row = f'{model}, {14 if long else 7} epochs'
    return table6.PAPER[row, 'exaFLOPs'].value / (1 + long)

  vit = compute('ViT-B/16')
  distance = {
    start.model: abs(math.log(compute(start.model) / vit))
    for start in table6.STARTS.values()
    if start.model.startswith('BiT-')
  }
  assert len(distance) == 6
  nearest = min(distance, key=distance.get)
  *_, resnet = items.ITEMS['regularization'].shown(scale)
  assert resnet.pretraining.model == nearest
  assert distance[nearest] < math.log(1.5)


@pytest.mark.parametrize(
  ('scale', 'depths'), [('paper', (8, 64)), ('mini', (2, 5)), ('midi', (2, 16))]
)
def test_norm_position_differs_in_depth_and_place(scale, depths):
  configs = [config.model for config in _configs('norm_position', scale)]
  assert [(c.depth, c.norm_position) for c in configs] == [
    (depth, place) for place in (None, 'post') for depth in depths
  ]
  assert len({(c.name, c.width, c.heads) for c in configs}) == 1
  # It shares the runs of LayerNorm first with Figure 8.
  nodes = items.ITEMS['norm_position'].shown(scale)
  assert {*nodes[:2]} < {*shapes.FIGURE8.shown(scale)}


@pytest.mark.parametrize('scale', SCALES)
def test_resolution_fine_tunes_at_a_lower_and_a_higher_size(scale):
  low, high = transfer.PIXELS[scale]
  assert low < high
  more = DATA.get(scale, '')
  sweep = reproduce.get_sweep(f'resolution,scale={scale},seeds=1{more}')
  configs = [
    reading.read_config(next(iter(s.all_runs()))) for s in sweep.studies
  ]
  assert {c.image_size for c in configs} == {(low, low), (high, high)}


@pytest.mark.parametrize('scale', SCALES)
def test_the_head_of_pretraining_has_a_hidden_layer(scale):
  [config] = _configs('head', scale)
  assert config.model.representation_size

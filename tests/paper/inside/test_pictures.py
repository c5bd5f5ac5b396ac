"""Guards: pictures of weights are right, from real runs of two steps."""

import flax.traverse_util
import numpy as np
import pandas as pd
import pytest

from tests.losses.test_runs import _config as masked_patch_config
from tests.tiny_run import eventful_config
from vit_jax import config as config_lib
from vit_jax import data, inspect, interop
from vit_jax.inspection import attention_maps, views
from vit_jax.models.shared import normalize
from vit_jax.paper.inside import pictures, weights
from vit_jax.training import train

pytestmark = pytest.mark.gate


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run on digits: 8x8 px in four patches; `test` has 72 images."""
  folder = tmp_path_factory.mktemp('run')
  config = eventful_config()
  config.total_steps = config.evals.test.every = 2
  config.accumulation_steps = 1
  config.schedule.warmup_steps = 0
  # Pictures use the first classification, with its images and preprocessing.
  evals = config.evals.to_dict()
  config.evals = dict(
    few_shot=config_lib.evaluation(
      'test', 'few_shot', train_split='train', shots=(1,)
    ),
    seen=config_lib.evaluation('train[:40]', preprocess='resize'),
    **evals,
  )
  config.evals.seen.every = config.evals.few_shot.every = 2
  train.train_and_evaluate(config, folder)
  return str(folder)


@pytest.fixture(scope='module')
def masked(tmp_path_factory):
  folder = tmp_path_factory.mktemp('masked')
  config = masked_patch_config('masked_patch', total_steps=2)
  config.schedule.warmup_steps = 0
  train.train_and_evaluate(config, folder)
  return str(folder)


def _draw(folder, *panels):
  """Draws panels (kind, title, workdir, images).

  Returns the titles that are drawn, the failures, and the table.
  """
  keys = ('kind', 'title', 'workdir', 'images')
  wanted = [
    dict(zip(keys, panel, strict=True)) | {'run': f'run of {panel[1]}'}
    for panel in panels
  ]
  found = pictures.draw(wanted, folder / 'figure', '')
  path = folder / 'figure.csv'
  return *found, pd.read_csv(path) if path.exists() else None


def test_images_are_those_of_the_first_classification(run):
  images, places = weights.held_out_images(run, 4)
  assert images.shape == (4, 8, 8, 1)
  assert places.tolist() == [5, 15, 25, 35]
  source = data.open_source('digits:01')
  for image, place in zip(images, places, strict=True):
    np.testing.assert_array_equal(
      image.squeeze(), source.read('train', place).image.squeeze()
    )
  assert len(weights.held_out_images(run, 50)[0]) == 40


def test_figure_7_has_three_parts(run, tmp_path):
  drawn, failures, table = _draw(
    tmp_path,
    ('filters', 'A', run, 0),
    ('position_similarity', 'A', run, 0),
    ('attention_distance', 'B', run, 4),
  )
  assert (drawn, failures) == (['A', 'B'], [])
  for end in ('png', 'pdf'):
    assert (tmp_path / f'figure.{end}').stat().st_size > 1000

  read = interop.read(run)
  images, _ = weights.held_out_images(run, 4)
  params = flax.traverse_util.unflatten_dict(dict(read.params), sep='/')
  attention = inspect.attention_weights(read.model, params, normalize(images))
  apart = np.float32(attention_maps.patch_distances((2, 2), (8, 8)))
  distances = attention_maps.sum_distances(attention, apart, 1) / len(images)
  parts = dict(list(table.groupby('part', sort=False)))
  assert {part: len(rows) for part, rows in parts.items()} == {
    'filters': 16 * 4 * 4,
    'position similarity': 16,
    'attention distance': 2,
    'uniform attention': 1,
    'uniform attention to the nearest half': 1,
  }
  np.testing.assert_allclose(
    parts['attention distance']['value'], np.ravel(distances), rtol=1e-4
  )
  assert set(parts['attention distance']['panel']) == {'B'}
  # Patches are 0, 4, 4 and 4 * sqrt(2) px away; the nearest half 0 and 4 px.
  assert parts['uniform attention']['value'].item() == pytest.approx(
    (8 + 4 * 2**0.5) / 4
  )
  half = parts['uniform attention to the nearest half']['value'].item()
  assert half == pytest.approx(2)
  np.testing.assert_allclose(
    parts['position similarity']['value'],
    views.position_similarity(weights.load(run)).ravel(),
    rtol=1e-6,
  )


def test_rollout_has_images_and_their_places(run, tmp_path):
  _, failures, table = _draw(tmp_path, ('rollout', 'A', run, 4))
  assert failures == []
  assert table['image'].unique().tolist() == [1, 2, 3, 4]
  assert table['place_in_split'].unique().tolist() == [5, 15, 25, 35]
  sums = table.groupby('image')['value'].sum()
  assert ((sums > 0.2) & (sums < 1)).all()  # The class token keeps the rest.


def test_predicted_colours_are_drawn(masked, tmp_path):
  _, failures, table = _draw(tmp_path, ('masked_patches', 'A', masked, 2))
  assert failures == []
  # Two images of 16 grey patches, each in three parts.
  assert len(table) == 2 * 16 * 3
  parts = dict(list(table.groupby('part')['value']))
  assert (tmp_path / 'figure.pdf').exists()
  assert (parts['input'] == 128).sum() > 8  # 40% are masked.
  assert (parts['image'].to_numpy() != parts['prediction'].to_numpy()).any()


def test_panels_that_fail_are_reported_and_others_are_drawn(
  run, masked, tmp_path
):
  drawn, failures, table = _draw(
    tmp_path,
    ('attention_distance', 'A', str(tmp_path / 'nowhere'), 4),
    ('attention_distance', 'B', masked, 4),
    ('attention_distance', 'C', run, 4),
    ('masked_patches', 'D', run, 4),
  )
  assert drawn == ['C']
  assert set(table['panel']) == {'C'}
  assert len(failures) == 3
  texts = '\n'.join(failures)
  assert 'attention distance of run of A: No checkpoint at' in texts
  assert 'attention distance of run of B: ' in texts
  assert 'masked patches of run of D: ' in texts

"""Guards: the evaluation benchmark measures the named evaluation's speed."""

import pytest

from benchmarks.measure import evaluation
from tests.benchmarks import tiny
from vit_jax import config as config_lib


def _config():
  config = tiny.config('digits', patch_size=(8, 8))
  config.channels = 1
  config.mesh.data = 1
  config.evals.test = config_lib.evaluation('test[:20]')
  return config


def test_measure():
  changed = 'evals.test.batch_size=16,evals.test.split=test[:40]'
  results = evaluation.measure(_config(), [changed], rounds=2)
  assert list(results) == ['config', changed]
  for result, images in zip(results.values(), (20, 40), strict=True):
    assert result['images'] == images
    assert result['seconds']['count'] == 2
    assert result['images_per_sec'] == pytest.approx(
      images / result['seconds']['median']
    )
    assert result['first_run_sec'] > result['seconds']['min']
    assert result['input_images_per_sec'] > 0
  assert results[changed]['ratio'] == pytest.approx(
    results['config']['images_per_sec'] / results[changed]['images_per_sec']
  )

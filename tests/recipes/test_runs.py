"""Guards: each recipe trains, resumes, and does not depend on the devices."""

import os
import signal

import numpy as np
import pytest

from tests import tiny_run
from tests.recipes import small
from vit_jax.runtime import errors
from vit_jax.training import train
from vit_jax.workdir import metrics

SLOW = pytest.mark.slow
pytestmark = pytest.mark.usefixtures('programs')
# The others compile as long. training/test_every_optimizer.py restores the
# state of each optimizer, test_teacher.py a run with a teacher, and what
# FlexiViT and MAE draw is a function of the step in losses/test_flexi.py and
# test_masked_patch.py.
MARKED = [
  pytest.param(name, marks=pytest.mark.gate if name == 'deit3' else SLOW)
  for name in small.RECIPES
]


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  """A trained model, for the recipes that need a teacher."""
  workdir = tmp_path_factory.mktemp('teacher')
  train.train_and_evaluate(small.run('deit3', steps=2), workdir)
  return workdir


@pytest.mark.parametrize('name', MARKED)
def test_a_stopped_recipe_goes_on_bitwise(name, teacher, tmp_path, monkeypatch):
  config = small.run(name, teacher)
  train.train_and_evaluate(config, tmp_path / 'whole')
  write = metrics.MetricWriter.write

  def write_and_stop(self, step, values):
    write(self, step, values)
    if step == 2:
      os.kill(os.getpid(), signal.SIGTERM)

  with monkeypatch.context() as patch:
    patch.setattr(metrics.MetricWriter, 'write', write_and_stop)
    with pytest.raises(errors.PreemptedError):
      train.train_and_evaluate(config, tmp_path / 'stopped')
  assert not (tmp_path / 'stopped' / 'DONE').exists()
  train.train_and_evaluate(config, tmp_path / 'stopped')
  tiny_run.assert_same_state(tmp_path / 'stopped', tmp_path / 'whole')


# In the gate, training/test_interrupted_run.py does so with augmentations, and
# losses/test_mae.py compares gradients.
@SLOW
@pytest.mark.parametrize('name', small.RECIPES)
def test_a_recipe_sees_the_same_on_two_devices_and_on_eight(
  name, teacher, tmp_path
):
  rows = []
  for devices in (2, 8):
    config = small.run(name, teacher, steps=2)
    config.mesh.data, config.dropout_rng = devices, 'threefry'
    train.train_and_evaluate(config, tmp_path / str(devices))
    rows.append(
      [
        row['train/loss']
        for row in metrics.read(tmp_path / str(devices))
        if 'train/loss' in row
      ]
    )
  assert len(rows[0]) == 2
  np.testing.assert_allclose(rows[0], rows[1], rtol=1e-4, atol=1e-6)

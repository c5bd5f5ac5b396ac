"""Guards: changed answers are counted on the run's own few-shot evaluation."""

import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.paper.inside import shifting
from vit_jax.training import train

pytestmark = pytest.mark.usefixtures('programs')


@pytest.mark.parametrize(
  ('size', 'patch'), [(224, 32), (64, 16), (24, 8), (384, 54)]
)
def test_a_shift_is_of_the_patch_that_stands_for_32_px(size, patch):
  assert shifting.patch_of(size) == patch


def test_small_images_are_refused():
  with pytest.raises(ValueError, match='images of 48 px have patches of 6 px'):
    shifting.patch_of(48)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A finished run on images of 8 px."""
  found = tmp_path_factory.mktemp('run')
  config = tiny_config({'data.batch_size': 16})
  config.evals.few_shot = config_lib.evaluation(
    'test',
    'few_shot',
    train_split='train',
    dataset='digits',
    shots=(5,),
    seeds=(0,),
  )
  train.train_and_evaluate(config, found)
  return found


def test_without_a_shift_the_accuracy_is_that_of_the_run(workdir, monkeypatch):
  monkeypatch.setitem(shifting._PATCHES, 8, 8)
  found = shifting.measured(str(workdir))
  accuracy = results.final_metrics(workdir)['few_shot/5shot/accuracy']
  assert 0.2 < accuracy < 0.9
  assert found['shift_accuracy'] == pytest.approx(100 * accuracy, abs=1e-3)
  # Two pixels of eight lose most of what a scan shows.
  assert 0 < found['shift_eighth'] < found['shift_quarter'] < 100
  assert 0 < found['shift_loss'] < found['shift_accuracy']

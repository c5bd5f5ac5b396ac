"""Guards: a FlexiViT begins as its teacher, and serves at any patch size."""

import jax
import numpy as np
import pytest

from tests import tiny_run
from tests.interop import tiny
from tests.recipes import small
from vit_jax import config as config_lib
from vit_jax import interop, models, sharding
from vit_jax.training import evaluate, train, warm_start
from vit_jax.training import program as program_lib
from vit_jax.workdir import metrics

pytestmark = pytest.mark.gate

KERNEL = 'embedding/kernel'
SIZES = {'depth': 1, 'width': 32, 'heads': 2, 'mlp_dim': 32}


def _config(recipe):
  config = small.shrunk(small.config_of(recipe))
  config.model.update(SIZES, dtype='float32')
  return config


@pytest.fixture(scope='module')
def runs(tmp_path_factory, compiled):
  """The folder of a teacher of 24 px, and of its student's run at 16 px."""
  folder = tmp_path_factory.mktemp('runs')
  model = models.build(
    'ViT-B/4', num_classes=5, gelu='exact', layer_scale=1.0, **SIZES
  )
  params = jax.tree.map(lambda x: 0.1 * x, tiny.params(model, (24, 24)))
  teacher = folder / 'teacher.npz'
  interop.save_npz(teacher, params, model, image_size=24)
  config = _config(f'flexi:B/4,teacher={teacher}')
  config.distill.image_size, config.flexi.patch_sizes = (24, 24), (4, 8)
  with tiny_run.keeping_programs(compiled):
    train.train_and_evaluate(config, folder / 'run')
  return folder


def _weights(path):
  return interop.read(path).params


def test_the_student_begins_as_its_teacher(runs):
  teacher, student = map(_weights, (runs / 'teacher.npz', runs / 'run'))
  assert teacher.keys() == student.keys()
  for name, x in teacher.items():
    if name.endswith('pos_embedding'):
      assert (x.shape[1], student[name].shape[1]) == (1 + 6 * 6, 1 + 7 * 7)
    else:  # Four steps change little.
      np.testing.assert_allclose(student[name], x, atol=1e-3, err_msg=name)
  assert (teacher[KERNEL] != student[KERNEL]).any()
  sizes = {row.get('train/patch_size') for row in metrics.read(runs / 'run')}
  assert sizes - {None} == {4, 8}


def test_it_serves_at_any_patch_size(runs, tmp_path):
  found = []
  for side in (4, 8):
    config = _config('flexi:B/4')
    config.init.checkpoint = str(runs / 'run')
    config.model.patch_size = side, side
    config.evals.test = config_lib.evaluation('test[:40]')
    found.append(evaluate.evaluate_only(config, tmp_path / str(side)))
    assert found[-1]['test/count'] == 40
  assert found[0]['test/loss'] != found[1]['test/loss']


def test_fine_tuning_begins_with_it(runs, tmp_path):
  config = _config('deit3:B/4,stage=finetune')
  config.init.checkpoint = warm_start.pin(str(runs / 'run'), tmp_path)
  config.model.patch_size, config.num_classes = (8, 8), 5
  config = warm_start.with_model(config, tmp_path)
  assert config.model.kernel_size == (4, 4)
  program = program_lib.Program(config, sharding.build(**config.mesh))
  loaded = warm_start.load(config.init.checkpoint, program, new_head=False)
  for name, x in tiny.flat(loaded).items():
    np.testing.assert_array_equal(x, _weights(runs / 'run')[name])

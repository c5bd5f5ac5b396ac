"""Guards all 19 tasks on TFDS's mock data, from their real splits to the score.

Mock data has no splits: each index of any split is a random record. So the
tests describe the data sets with their published sizes, and each task trains on
its own thousand images.
"""

import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.testing import mocking

from tests import test_vtab
from tests.data.test_vtab_tasks import SIZES, write
from vit_jax import vtab
from vit_jax.configs import vtab as vtab_config
from vit_jax.data.sources import vtab_tasks as tasks
from vit_jax.training import stages

pytestmark = pytest.mark.tensorflow


class Generator(mocking.SerializedRandomFakeGenerator):
  """TFDS's generator, without the values that TFDS cannot encode."""

  def __init__(self, features, num_examples):
    # By default, the parts of a sequence (CLEVR's objects) differ in length.
    super().__init__(features, num_examples, constant_dynamic_shape=True)

  def _generate_random_obj(self, feature, tensor_info, rng):
    made = super()._generate_random_obj(feature, tensor_info, rng)
    if isinstance(feature, tfds.features.BBoxFeature):
      return np.sort(made.reshape(-1, 2, 2), axis=1).reshape(made.shape)
    return made


def _describe(task, data_dir):
  """Writes a data set's description with the published sizes of its splits."""
  builder = task.later_builder or task.builder
  write(builder, str(data_dir))
  [path] = (data_dir / builder.split(':')[0]).glob('*/dataset_info.json')
  info = json.loads(path.read_text())
  sizes, _ = SIZES[task.builder.split(':')[0]]
  template = info['splits'][0]
  info['splits'] = [
    template | {'name': split, 'shardLengths': [str(size)]}
    for split, size in sizes.items()
  ]
  path.write_text(json.dumps(info))


def test_nineteen_tasks(tmp_path, monkeypatch, capsys):
  described = {task.builder: task for task in tasks.TASKS.values()}
  for task in described.values():
    _describe(task, tmp_path / 'tfds')
  monkeypatch.setattr(mocking, 'SerializedRandomFakeGenerator', Generator)
  config = vtab_config.get_config('ViT-B/16,all')
  config.init.checkpoint, config.data.data_dir = '', str(tmp_path / 'tfds')
  for name, stage in config.stages.items():
    thousand = stage.data.train_split
    test_vtab.shrink(stage)
    stage.data.train_split, stage.data.num_examples = thousand, 1000
    # The whole test split would take hours.
    test = tasks.TASKS[name].test.partition('[')[0]
    stage.evals.test.split = f'{test}[-40:]'
  workdir = tmp_path / 'runs'
  with tfds.testing.mock_data(1000, data_dir=str(tmp_path / 'tfds')):
    stages.run(config, workdir)

  accuracies = vtab.read(workdir)
  assert list(accuracies) == list(tasks.TASKS)
  capsys.readouterr()
  vtab.main([str(workdir)])
  rows = capsys.readouterr().out.strip().split('\n')
  assert len(rows) == 19 + 3 + 1
  assert [row.split()[0] for row in rows[19:]] == [*tasks.GROUPS, 'mean']
  mean = 100 * sum(accuracies.values()) / 19
  assert float(rows[-1].split()[-1]) == pytest.approx(mean, abs=0.0051)

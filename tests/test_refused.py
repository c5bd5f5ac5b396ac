"""Guards: a wrong config, data set or work directory stops a run early."""

import pathlib
import re
import shutil

import cv2
import numpy as np
import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax.data.source import Record
from vit_jax.data.sources import digits
from vit_jax.training import step as step_lib
from vit_jax.training import train
from vit_jax.workdir import metrics

pytestmark = pytest.mark.usefixtures('programs')

ROOT = pathlib.Path(__file__).parents[1]


def _config():
  config = tiny_config(
    {
      'data.train_split': 'train[:16]',
      'mesh.data': -1,
    }
  )
  # With it, runs of any length compile the same program.
  config.schedule = config_lib.schedule('constant', peak=1e-3, warmup_steps=0)
  config.evals.test = config_lib.evaluation('test[:5]')
  return config


@pytest.fixture
def no_training(monkeypatch):
  def fail(*_, **__):
    raise AssertionError('A training step was built.')

  monkeypatch.setattr(step_lib, 'make_train_step', fail)


@pytest.mark.usefixtures('no_training')
@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {'data.batch_size': 12},
      'data.batch_size=12 must be a positive multiple of 8 device(s); the'
      ' nearest: 8 or 16.',
    ),
    (
      {'accumulation_steps': 3},
      'data.batch_size=16 must be a positive multiple of 8 device(s) x 3'
      ' accumulation steps = 24; the nearest: 24.',
    ),
    (
      {'evals.test.batch_size': 12},
      'evals.test.batch_size=12 must be a positive multiple of 8 device(s)',
    ),
    (
      {'mesh.partition': 'manual', 'mesh.gather': 'micro_batch'},
      "mesh.partition='manual' does not go with mesh.gather='micro_batch'",
    ),
    (
      {'mesh.partition': 'manual', 'model.dropout_rate': 0.1},
      "mesh.partition='manual' gives each device dropout masks of its own,",
    ),
    (
      {'model.attention_implementation': 'splash'},
      "attention_implementation='splash' must be one of ['plain', 'lanes',",
    ),
    (
      {'model.attention_implementation': 'cudnn'},
      "attention_implementation='cudnn' needs an NVIDIA GPU and heads that its",
    ),
    (
      {'evals.test.dataset': 'digits:012'},
      "evals.test: 'digits:012' has 3 classes, but the training data"
      " 'digits:01' has 2.",
    ),
    ({'evals.test.split': 'test[5:5]'}, 'test[5:5] selects nothing'),
    ({'data.train_split': 'valid'}, "Split expression 'valid' over the splits"),
    ({'evals.test.split': 'valid'}, 'over the splits train (288), test (72)'),
    ({'evals.test.preprocess': ''}, 'gave an image of 8x8'),
    ({'model.heads': 3}, 'width 16 is not a multiple of heads 3'),
    (
      {'schedule.warmup_steps': 2},
      'schedule.warmup_steps=2 must be at least 0',
    ),
    (
      {'init.checkpoint': 'nowhere'},
      f'No checkpoint at {ROOT}/nowhere: the path does not exist. Exp',
    ),
  ],
  ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_refused(tmp_path, monkeypatch, changes, message):
  monkeypatch.chdir(ROOT)
  config = _config()
  if 'evals.test.preprocess' in changes:
    config.image_size = (16, 16)
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=re.escape(message)):
    train.train_and_evaluate(config, tmp_path / 'run')
  assert not metrics.read(tmp_path / 'run')


# Images and labels -----------------------------------------------------------


@pytest.fixture
def images(tmp_path):
  """16 training and five test images; one of each split is truncated."""
  rng = np.random.default_rng(0)
  for split, count in (('train', 16), ('test', 5)):
    for i in range(count):
      path = tmp_path / 'images' / split / 'ab'[i % 2] / f'{i}.png'
      path.parent.mkdir(parents=True, exist_ok=True)
      cv2.imwrite(str(path), rng.integers(0, 256, (8, 8), np.uint8))
  for file in ('train/a/6.png', 'test/b/3.png'):
    path = tmp_path / 'images' / file
    path.write_bytes(path.read_bytes()[:-12])
  return tmp_path / 'images'


def _config_of(images):
  config = _config()
  config.data.dataset = f'folder:{images}'
  config.data.train_split = 'train'
  config.evals.test.split = 'test'
  config.mesh.data = 1
  return config


def test_an_unreadable_image_is_named(images, tmp_path):
  config = _config_of(images)
  with pytest.raises(ValueError, match='truncated PNG') as error:
    train.train_and_evaluate(config, tmp_path / 'run')
  assert f'{images}/train/a/6.png' in str(error.value)
  assert 'set --config.data.unreadable=skip-and-count' in str(error.value)
  # The error comes before the first step.
  assert metrics.read(tmp_path / 'run') == []


def test_unreadable_images_are_counted(images, tmp_path):
  config = _config_of(images)
  config.data.unreadable = 'skip-and-count'
  result = train.train_and_evaluate(config, tmp_path / 'run')
  # Each of the two epochs, one step long, meets the image once.
  assert result['train/unreadable'] == 2
  assert result['test/count'] == 4
  assert result['test/excluded'] == 1


@pytest.mark.usefixtures('no_training')
@pytest.mark.parametrize('split', ['train', 'test'])
def test_a_first_label_out_of_range(tmp_path, monkeypatch, split):
  _wrong_label(monkeypatch, split, 0)
  with pytest.raises(
    ValueError, match=rf'{split}/0 has label 7, .* \[0, num_classes=2\)'
  ):
    train.train_and_evaluate(_config(), tmp_path / 'run')
  assert not metrics.read(tmp_path / 'run')


def test_a_later_label_out_of_range(tmp_path, monkeypatch):
  _wrong_label(monkeypatch, 'train', 5)
  config = _config()
  config.mesh.data = 1
  with pytest.raises(ValueError, match=r'train/5 has label 7, outside of \[0'):
    train.train_and_evaluate(config, tmp_path / 'run')
  assert metrics.read(tmp_path / 'run') == []
  # The log has the traceback, which a command does not print.
  log = (tmp_path / 'run' / 'train.log').read_text()
  assert 'ERROR Failed:\nTraceback (most recent call last):\n' in log


def _wrong_label(monkeypatch, split, index):
  read = digits.Digits.read

  def read_wrongly(self, *position):
    record = read(self, *position)
    if position != (split, index):
      return record
    return Record(record.image, 7, record.name)

  monkeypatch.setattr(digits.Digits, 'read', read_wrongly)


# A work directory of another run ---------------------------------------------


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('finished') / 'run'
  config = _config()
  config.mesh.data = 1
  train.train_and_evaluate(config, workdir)
  return workdir


def _files(workdir):
  """Returns the content of each file, without the lock and the log."""
  return {
    str(path.relative_to(workdir)): path.read_bytes()
    for path in workdir.rglob('*')
    if path.is_file() and path.name not in ('owner.json', 'train.log')
  }


@pytest.mark.usefixtures('no_training')
def test_a_work_directory_of_another_config(finished):
  before = _files(finished)
  config = _config()
  config.total_steps, config.model.width = 1, 32
  with pytest.raises(ValueError, match='holds a run with another') as error:
    train.train_and_evaluate(config, finished)
  assert (
    '\n  model.width: 16 in config.json, 32 now'
    '\n  total_steps: 2 in config.json, 1 now\nUse another --workdir, or pass'
    ' --allow_config_change'
  ) in str(error.value)
  assert _files(finished) == before


@pytest.mark.usefixtures('no_training')
def test_steps_past_the_end(finished):
  before = _files(finished)
  config = _config()
  config.total_steps = 1
  config.mesh.data = 1
  with pytest.raises(
    ValueError, match=r'has a checkpoint of step 2, past total_steps=1: raise'
  ):
    train.train_and_evaluate(config, finished, allow_config_change=True)
  assert _files(finished) == before


def test_an_allowed_change_of_the_config(finished, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(finished, workdir)
  config = _config()
  config.total_steps = 3
  config.mesh.data = 1
  result = train.train_and_evaluate(config, workdir, allow_config_change=True)
  assert result['step'] == 3
  assert config_lib.load(workdir)['total_steps'] == 3
  assert [row['step'] for row in metrics.read(workdir)] == [2, 2, 3, 3]

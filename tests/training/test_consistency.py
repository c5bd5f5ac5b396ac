"""Guards: all processes and launches of a run use the same config and data."""

import json

import cv2
import numpy as np
import pytest

from tests.tiny_run import Death, die_at, eventful_config
from vit_jax import data
from vit_jax.data import identity
from vit_jax.training import consistency, train


def _digests(root, **others):
  view = data.View(data.open_source(f'folder:{root}'), 'train')
  return {'training data': data.digest(view), **others}


@pytest.fixture
def images(tmp_path):
  for name in ('a/1.jpg', 'a/2.jpg', 'b/3.jpg'):
    path = tmp_path / 'images/train' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
  return tmp_path / 'images'


def test_data_that_was_changed_is_refused(images, tmp_path):
  consistency.check_same_data(tmp_path, _digests(images))  # No record yet.
  consistency.write_data(tmp_path, _digests(images))
  consistency.check_same_data(tmp_path, _digests(images))
  (images / 'train/b/3.jpg').write_text('b/4.jpg')
  with pytest.raises(ValueError, match='The data') as error:
    consistency.check_same_data(tmp_path, _digests(images))
  lines = str(error.value).splitlines()
  assert (
    lines[0] == f'The data is not what the run in {tmp_path} has read so far:'
  )
  assert lines[1].startswith('  training data: contents: 2: "b/3.jpg ')
  assert lines[2].startswith('Restore the data, or pass --allow_config_change')


def test_training_data_may_be_moved(images, tmp_path):
  consistency.write_data(tmp_path, _digests(images))
  images.rename(tmp_path / 'elsewhere')
  consistency.check_same_data(tmp_path, _digests(tmp_path / 'elsewhere'))


def test_what_could_not_be_read_is_not_compared(images, tmp_path):
  unknown = _digests(images)
  unknown['training data']['contents']['1'] = identity.UNKNOWN
  sizes = unknown['training data']['train']
  known = _digests(images)['training data']
  sizes['sizes of the files'] = identity.UNKNOWN
  consistency.write_data(tmp_path, _digests(images))
  consistency.check_same_data(tmp_path, unknown)
  # An unknown value does not replace a known one in the record either.
  consistency.write_data(tmp_path, unknown)
  kept = json.loads((tmp_path / consistency.DATA).read_text())
  assert kept['training data'] == known


def test_evaluations_that_are_left_out_are_remembered(images, tmp_path):
  part = {'dataset': 'folder:a', 'split': 'test', 'examples': 5}
  consistency.write_data(tmp_path, _digests(images, **{'test: test': part}))
  consistency.write_data(tmp_path, _digests(images))
  changed = {**part, 'examples': 6}
  with pytest.raises(ValueError, match='test: test: examples: 6 now, 5 then'):
    consistency.check_same_data(
      tmp_path, _digests(images, **{'test: test': changed})
    )


def test_evaluations_are_compared_on_the_same_split_only(images, tmp_path):
  def of(split, examples, dataset='folder:a'):
    part = {'dataset': dataset, 'split': split, 'examples': examples}
    return _digests(images, **{'test: test': part})

  consistency.write_data(tmp_path, of('test', 5))
  consistency.check_same_data(tmp_path, of('test[:3]', 3))
  consistency.check_same_data(tmp_path, of('test', 3, 'folder:b'))
  consistency.check_same_data(tmp_path, _digests(images))
  with pytest.raises(ValueError, match='test: test: examples: 3 now, 5 then'):
    consistency.check_same_data(tmp_path, of('test', 3))


@pytest.mark.parametrize('text', ['{', '[]', '\xff', '[' * 100_000])
def test_a_damaged_record_is_named(images, tmp_path, text):
  path = tmp_path / consistency.DATA
  path.write_bytes(text.encode('latin-1'))
  with pytest.raises(
    ValueError, match=r'is damaged .*: delete it to accept'
  ) as e:
    consistency.check_same_data(tmp_path, _digests(images))
  assert str(path) in str(e.value)
  path.write_text(json.dumps({'training data': 5}))
  consistency.check_same_data(tmp_path, _digests(images))


def _train(images, workdir, until, **options):
  """Resumes from the newest checkpoint, and dies at the step `until`."""
  config = eventful_config()
  config.data.dataset = f'folder:{images}'
  config.evals.test.every = 0
  config.checkpoint.every = 1
  config.log.every = 1
  with pytest.MonkeyPatch.context() as patch:
    die_at(patch, until)
    with pytest.raises(Death):
      train.train_and_evaluate(config, workdir, **options)


@pytest.mark.gate
def test_a_run_does_not_go_on_with_other_images(tmp_path):
  rng = np.random.default_rng(0)
  for split in ('train', 'test'):
    for i in range(4):
      path = tmp_path / f'images/{split}/{i % 2}/{i}.png'
      path.parent.mkdir(parents=True, exist_ok=True)
      cv2.imwrite(str(path), rng.integers(0, 256, (8, 8), np.uint8))
  images, run = tmp_path / 'images', tmp_path / 'run'
  _train(images, run, 2)
  a, b = (images / f'train/1/{i}.png' for i in (1, 3))
  swapped = a.read_bytes(), b.read_bytes()
  b.write_bytes(swapped[0])
  a.write_bytes(swapped[1])
  metrics = (run / 'metrics.jsonl').read_bytes()
  with pytest.raises(
    ValueError, match=r'training data: contents: 2: "1/1\.png '
  ):
    _train(images, run, 4)
  assert (run / 'metrics.jsonl').read_bytes() == metrics
  _train(images, run, 4, allow_config_change=True)
  # From then on, the changed data is the data of the run.
  _train(images, run, 5)
  (images / 'test/0/2.png').rename(images / 'test/0/4.png')
  with pytest.raises(ValueError, match='test: test: test: names of the files'):
    _train(images, run, 6)

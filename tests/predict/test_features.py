"""Guards: features in files are those of the model, and nothing gets lost."""

import json
import pathlib

import cv2
import jax
import numpy as np
import pandas as pd
import pytest
from etils import epath
from sklearn import neighbors

import vit_jax
from tests.tiny_run import SIZES, Death
from vit_jax import config as config_lib
from vit_jax import data, interop, models, sharding
from vit_jax.evaluators.evaluator import Context
from vit_jax.evaluators.knn import NearestNeighbours
from vit_jax.predict import extraction, store
from vit_jax.training import step as step_lib

SPEC = 'digits:0123'


def save_random(path, seed):
  """Saves random weights, so that features differ between images."""
  model = models.build('ViT-Ti/4', num_classes=4, **SIZES)
  shapes = jax.eval_shape(
    lambda: step_lib.init_params(model, jax.random.key(0), (8, 8, 1))
  )
  rng = np.random.default_rng(seed)
  params = jax.tree.map(
    lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes
  )
  interop.save_npz(path, params, model, image_size=8)
  return path


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
  return save_random(tmp_path_factory.mktemp('weights') / 'tiny.npz', 0)


@pytest.fixture(scope='module')
def model(weights):
  return vit_jax.load(weights)


def _extract(model, to, split='train[:100]', **options):
  view = data.View(data.open_source(SPEC), split)
  extraction.extract(model, view, to, **dict(shard_size=40) | options)
  return vit_jax.features.Stored(to)


def _together(stored):
  return np.concatenate(list(stored))


@pytest.fixture(scope='module')
def train(model, tmp_path_factory):
  return _extract(model, tmp_path_factory.mktemp('train'))


@pytest.fixture(scope='module')
def test(model, tmp_path_factory):
  return _extract(model, tmp_path_factory.mktemp('test'), 'test')


@pytest.fixture(scope='module')
def accuracies(model):
  return _accuracies(model)


def _accuracies(model, **options):
  """Returns what the evaluation `knn` measures."""
  config, source = config_lib.default(), data.open_source(SPEC)
  config.data.threads = 0
  options |= dict(train_split='train[:100]', k=(1, 5), weights='uniform')
  given = Context(
    *(config, config_lib.evaluation('test', 'knn', **options)),
    *(model.module, model.mesh, source, source, model.preprocess, 16),
  )
  return dict(NearestNeighbours(given).run(model.params))


def test_parquet_in_scikit_learn_gives_the_evaluators_accuracy(
  train, test, accuracies
):
  tables = [pd.read_parquet(stored.folder) for stored in (train, test)]
  assert list(tables[0]) == ['index', 'name', 'label', 'features']
  assert tables[0]['index'].tolist() == list(range(100))
  assert tables[0].name.tolist()[:2] == ['train/0', 'train/1']
  (x, labels), (queries, expected) = (
    (np.stack(table.features), table.label) for table in tables
  )
  for k in (1, 5):
    classifier = neighbors.KNeighborsClassifier(k, metric='cosine')
    accuracy = classifier.fit(x, labels).score(queries, expected)
    assert accuracy == accuracies[f'{k}nn/accuracy']
    assert 0.5 < accuracy < 1


def test_one_and_eight_devices_give_the_same(
  model, train, monkeypatch, weights, tmp_path
):
  view = data.View(data.open_source(SPEC), 'train[:100]')
  images = [record.image for record in view]
  expected = _together(train)
  np.testing.assert_allclose(
    expected, model.features(images), rtol=1e-4, atol=1e-6
  )
  make = sharding.make_mesh
  monkeypatch.setattr(sharding, 'make_mesh', lambda: make(1))
  found = _extract(vit_jax.load(weights), tmp_path)
  np.testing.assert_allclose(_together(found), expected, rtol=1e-5, atol=1e-6)
  # The same work: the other number of devices may continue it.
  found.check_comparable(train)


@pytest.mark.parametrize('suffix', store.FORMATS)
def test_all_formats_hold_the_same_and_are_continued(
  suffix, model, train, tmp_path, monkeypatch, caplog
):
  options = dict(suffix=suffix, dtype='float16')
  write, done = store.write, []

  def die(path, columns):
    if done:
      raise Death
    write(path, columns)
    done.append(path)

  def content(name):
    files = pathlib.Path(tmp_path / name).iterdir()
    return {path.name: path.read_bytes() for path in files}

  with monkeypatch.context() as patch:
    patch.setattr(store, 'write', die)
    with pytest.raises(Death):
      _extract(model, tmp_path / 'a', **options)
  with pytest.raises(ValueError, match='is incomplete'):
    store.Stored(tmp_path / 'a')
  before = done[0].stat().st_mtime_ns
  caplog.set_level('INFO', logger='absl')
  found = _extract(model, tmp_path / 'a', **options)
  assert caplog.text.count(' left') >= 2  # Two shards were missing.
  assert done[0].stat().st_mtime_ns == before
  _extract(model, tmp_path / 'b', **options)
  assert content('a') == content('b')
  assert [len(x) for x in found] == [40, 40, 20]
  np.testing.assert_array_equal(found.labels(), train.labels())
  np.testing.assert_array_equal(found.column('name'), train.column('name'))
  np.testing.assert_array_equal(
    _together(found), np.float16(_together(train)).astype(np.float32)
  )


@pytest.mark.parametrize('suffix', store.FORMATS)
def test_patches_have_the_shape_that_the_folder_tells(suffix, model, tmp_path):
  layer = 'block_0/norm/patches'
  options = dict(suffix=suffix, layer=layer, shard_size=None)
  for _ in range(2):  # The second call continues a complete folder.
    found = _extract(model, tmp_path, 'train[:9]', **options)
  view = data.View(data.open_source(SPEC), 'train[:9]')
  expected = model.features([record.image for record in view], layer)
  assert list(expected.shape) == [9, *found.facts['shape']]
  assert found.facts['shard_size'] == 25_000
  np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
  if suffix == 'parquet':
    lists = np.stack(pd.read_parquet(found.folder).features)
    np.testing.assert_array_equal(lists.reshape(found[0].shape), found[0])
  with pytest.raises(ValueError, match='without /patches'):
    found.vectors()


def test_neighbours_take_class_tokens_but_no_patches(model, accuracies):
  assert _accuracies(model, layer='encoded/cls') == accuracies
  with pytest.raises(ValueError, match=r'no layer .*/patches'):
    _accuracies(model, layer='encoded/patches')


def test_other_features_are_refused(model, train, tmp_path):
  other = vit_jax.load(save_random(tmp_path / 'other.npz', 1))
  for name, asked in {
    'weights': (other, train.folder),
    'data_digest': (model, train.folder, 'train[1:101]'),
  }.items():
    with pytest.raises(ValueError, match=f'other features.*{name}'):
      _extract(*asked)
  for name, value in {'layer': 'block_0', 'shard_size': 50}.items():
    with pytest.raises(ValueError, match=f'other features.*{name}'):
      _extract(model, train.folder, **{name: value})
  with pytest.raises(ValueError, match='no layer'):
    _extract(model, tmp_path / 'x', layer='block_1')
  with pytest.raises(ValueError, match='holds no features'):
    store.Stored(tmp_path)
  with pytest.raises(ValueError, match='layer='):
    train.check_comparable(_extract(model, tmp_path / 'x', layer='block_0'))


@pytest.mark.parametrize('suffix', store.FORMATS)
def test_several_labels_and_none(tmp_path, suffix):
  columns = {
    'index': np.arange(3),
    'name': np.array(['a', 'b', 'c']),
    'label': np.int32([[3, 1], [-1, -1], [2, -1]]),
    'features': np.zeros((3, 2), np.float32),
  }
  [path] = store.shard_paths(tmp_path, 1, suffix)
  store.write(path, columns)
  if suffix == 'parquet':
    table = pd.read_parquet(path)
    assert [list(x) for x in table.label] == [[3, 1], [], [2]]
  else:
    np.testing.assert_array_equal(store.read(path, 'label'), columns['label'])
  store.write(path, columns | {'label': columns['label'][:, 0]})
  facts = {'rows': 3, 'shards': 1, 'format': suffix, 'labels': 'one'}
  store.write_metadata(epath.Path(tmp_path), facts)
  with pytest.raises(ValueError, match=r'1 of 3 images of .* have no label'):
    store.Stored(tmp_path).labels()


@pytest.mark.gate
def test_files_that_are_no_images_are_named(weights, tmp_path, command):
  source = data.open_source(SPEC)
  for i, name in enumerate('abd'):
    image = source.read('test', i).image
    cv2.imwrite(str(tmp_path / f'{name}.png'), image)
  (tmp_path / 'c.png').write_bytes(b'no image')
  done = command(
    *('vit_jax.features', f'--checkpoint={weights}', f'--to={tmp_path / "to"}'),
    *('--format=npz', '--shard_size=2', tmp_path),
  )
  assert done.returncode == 3, done.stderr
  found = store.Stored(tmp_path / 'to')
  assert found.facts['unreadable_names'] == [str(tmp_path / 'c.png')]
  assert found.column('index').tolist() == [0, 1, 3]
  with pytest.raises(ValueError, match='have no labels'):
    found.labels()
  # The nearest image of an image is itself.
  words = ('vit_jax.knn', f'--train={tmp_path / "to"}', tmp_path / 'd.png')
  done = command(*words, tmp_path / 'a.png', '--k=2', '--json')
  rows = [json.loads(line) for line in done.stdout.splitlines()]
  assert [pathlib.Path(row['name']).name for row in rows] == ['d.png', 'a.png']
  for row in rows:
    assert row['neighbours'][0]['name'] == row['name']
    assert abs(row['neighbours'][0]['distance']) < 1e-5
    assert row['neighbours'][1]['distance'] > 1e-3
  lines = command(*words, '--k=2').stdout.splitlines()
  assert lines[1].split() == ['class', 'name', 'distance']
  assert lines[2].split() == ['-', str(tmp_path / 'd.png'), '0.0000']
  assert len(lines) == 4
  assert command(*words, '--k=20').returncode == 1  # There are three images.


def test_the_command_finds_the_evaluators_accuracy(
  train, test, accuracies, command
):
  words = ('vit_jax.knn', f'--train={train.folder}', f'--test={test.folder}')
  done = command(*words, '--json', '--k=1,5', '--weights=uniform')
  assert json.loads(done.stdout) == accuracies | {'count': 144}
  for wrong in ('--weights=distance', '--k=0'):
    assert command(*words, wrong).returncode == 1


@pytest.mark.gate
def test_the_command_fits_a_linear_probe(model, train, tmp_path, command):
  _extract(model, tmp_path, 'test')
  done = command(
    *('vit_jax.knn', f'--train={train.folder}', f'--test={tmp_path}'),
    *('--json', '--linear_probe', '--l2=1e-3'),
  )
  assert json.loads(done.stdout)['accuracy'] > 0.7

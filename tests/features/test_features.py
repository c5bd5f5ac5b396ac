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
from vit_jax import data, features, interop, models, sharding
from vit_jax.evaluators.evaluator import Context
from vit_jax.evaluators.knn import NearestNeighbours
from vit_jax.features import extraction, store
from vit_jax.training import step as step_lib

SPEC = 'digits:0123'


def _save(path, seed):
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
  return _save(tmp_path_factory.mktemp('weights') / 'tiny.npz', 0)


@pytest.fixture(scope='module')
def model(weights):
  return vit_jax.load(weights)


@pytest.fixture
def photos(tmp_path):
  """Returns a folder of three images and a file that is none."""
  folder = tmp_path / 'photos'
  folder.mkdir()
  source = data.open_source(SPEC)
  for i, name in enumerate('abd'):
    image = source.read('test', i).image
    cv2.imwrite(str(folder / f'{name}.png'), image)
  (folder / 'c.png').write_bytes(b'no image')
  return folder


def _view(split, spec=SPEC):
  return data.View(data.open_source(spec), split)


def _extract(model, to, split='train[:100]', **options):
  return extraction.extract(
    model, _view(split), to, **dict(shard_size=40) | options
  )


def _read(folder):
  return {
    path.name: path.read_bytes()
    for path in sorted(pathlib.Path(folder).iterdir())
  }


@pytest.fixture(scope='module')
def train(model, tmp_path_factory):
  to = tmp_path_factory.mktemp('train')
  _extract(model, to)
  return to


def _evaluation(model, k):
  config, source = config_lib.default(), data.open_source(SPEC)
  config.data.threads = 0
  section = config_lib.evaluation(
    'test',
    'knn',
    train_split='train[:100]',
    k=(k,),
    weights='uniform',
  )
  given = Context(
    *(config, section, model.module, model.mesh, source, source),
    *(model.preprocess, 16),
  )
  return dict(NearestNeighbours(given).run(model.params))[f'{k}nn/accuracy']


def test_parquet_in_scikit_learn_gives_the_evaluators_accuracy(
  model, train, tmp_path
):
  _extract(model, tmp_path, 'test')
  tables = list(map(pd.read_parquet, (train, tmp_path)))
  assert list(tables[0]) == ['index', 'name', 'label', 'features']
  assert tables[0]['index'].tolist() == list(range(100))
  assert tables[0].name.tolist()[:2] == ['train/0', 'train/1']
  (x, labels), (queries, expected) = (
    (np.stack(table.features), table.label) for table in tables
  )
  for k in (1, 5):
    classifier = neighbors.KNeighborsClassifier(k, metric='cosine')
    accuracy = classifier.fit(x, labels).score(queries, expected)
    assert accuracy == _evaluation(model, k)
    assert 0.5 < accuracy < 1


def test_one_and_eight_devices_give_the_same(
  model, train, monkeypatch, weights
):
  expected = np.concatenate(list(features.Stored(train)))
  np.testing.assert_allclose(
    expected,
    model.features([r.image for r in _view('train[:100]')]),
    rtol=1e-4,
    atol=1e-6,
  )
  make = sharding.make_mesh
  monkeypatch.setattr(sharding, 'make_mesh', lambda: make(1))
  to = train.parent / 'one'
  _extract(vit_jax.load(weights), to)
  found = features.Stored(to)
  np.testing.assert_allclose(
    np.concatenate(list(found)), expected, rtol=1e-5, atol=1e-6
  )
  # The same work: the other number of devices may continue it.
  found.check_comparable(features.Stored(train))


@pytest.mark.parametrize('suffix', store.FORMATS)
def test_all_formats_hold_the_same_and_are_continued(
  suffix, model, train, tmp_path, monkeypatch
):
  options = dict(suffix=suffix, dtype='float16')
  write, done = store.write, []

  def die(path, columns):
    if len(done) == 1:
      raise Death
    write(path, columns)
    done.append(path)

  with monkeypatch.context() as patch:
    patch.setattr(store, 'write', die)
    with pytest.raises(Death):
      _extract(model, tmp_path / 'a', **options)
  with pytest.raises(ValueError, match='is incomplete: start the command'):
    features.Stored(tmp_path / 'a')
  before = done[0].stat().st_mtime_ns
  _extract(model, tmp_path / 'a', **options)
  assert done[0].stat().st_mtime_ns == before
  _extract(model, tmp_path / 'b', **options)
  assert _read(tmp_path / 'a') == _read(tmp_path / 'b')
  # A damaged shard is computed again.
  last = store.shard_path(tmp_path / 'a', 2, 3, suffix)
  last.write_bytes(last.read_bytes()[:-100])
  _extract(model, tmp_path / 'a', **options)
  assert _read(tmp_path / 'a') == _read(tmp_path / 'b')

  found, expected = features.Stored(tmp_path / 'a'), features.Stored(train)
  assert [len(x) for x in found] == [40, 40, 20]
  np.testing.assert_array_equal(found.labels(), expected.labels())
  np.testing.assert_array_equal(found.column('name'), expected.column('name'))
  np.testing.assert_array_equal(
    np.concatenate(list(found)),
    np.float16(np.concatenate(list(expected))).astype(np.float32),
  )


def test_other_features_are_refused(model, train, tmp_path):
  other = vit_jax.load(_save(tmp_path / 'other.npz', 1))
  for name, ask in {
    'weights': lambda: _extract(other, train),
    'data_digest': lambda: _extract(model, train, 'train[1:101]'),
    "layer='pre_logits' there, 'block_0' now": lambda: _extract(
      model, train, layer='block_0'
    ),
    'shard_size': lambda: _extract(model, train, shard_size=50),
  }.items():
    with pytest.raises(ValueError, match=f'holds other features.*{name}'):
      ask()
  with pytest.raises(ValueError, match='no layer'):
    _extract(model, tmp_path / 'x', layer='block_1')
  with pytest.raises(
    ValueError, match='holds no features: it has no _metadata'
  ):
    features.Stored(tmp_path)
  _extract(model, tmp_path / 'x', layer='block_0')
  with pytest.raises(ValueError, match=r"layer='pre_logits', but .*'block_0'"):
    features.Stored(train).check_comparable(features.Stored(tmp_path / 'x'))


def test_several_labels(tmp_path):
  labels = np.int32([[3, 1], [-1, -1], [2, -1]])
  columns = {
    'index': np.arange(3),
    'name': np.array(['a', 'b', 'c']),
    'label': labels,
    'features': np.zeros((3, 2), np.float32),
  }
  for suffix in store.FORMATS:
    path = store.shard_path(tmp_path, 0, 1, suffix)
    store.write(path, columns)
    np.testing.assert_array_equal(store.read(path, 'label'), labels)
  table = pd.read_parquet(tmp_path / 'features-00000-of-00001.parquet')
  assert [list(x) for x in table.label] == [[3, 1], [], [2]]


def test_images_without_a_label_train_nothing(tmp_path):
  columns = {
    'index': np.arange(2),
    'name': np.array(['a', 'b']),
    'label': np.int32([1, -1]),
    'features': np.zeros((2, 3), np.float32),
  }
  store.write(store.shard_path(tmp_path, 0, 1, 'npz'), columns)
  facts = {'rows': 2, 'shards': 1, 'format': 'npz', 'labels': 'one'}
  store.write_metadata(epath.Path(tmp_path), facts)
  with pytest.raises(ValueError, match=r'1 of 2 images of .* have no label'):
    features.Stored(tmp_path).labels()


@pytest.mark.gate
def test_files_that_are_no_images_are_named(weights, photos, tmp_path, command):
  done = command(
    *('vit_jax.features', f'--checkpoint={weights}', f'--to={tmp_path / "to"}'),
    *('--format=npz', '--shard_size=2', photos),
  )
  assert done.returncode == 3, done.stderr
  assert f'1 of 4 images could not be read: {photos / "c.png"}' in done.stderr
  found = features.Stored(tmp_path / 'to')
  assert found.facts['unreadable_names'] == [str(photos / 'c.png')]
  assert found.column('index').tolist() == [0, 1, 3]
  with pytest.raises(ValueError, match='have no labels'):
    found.labels()
  # The nearest image of an image is itself.
  done = command(
    *('vit_jax.knn', f'--train={tmp_path / "to"}', '--k=2', '--json'),
    *(photos / 'd.png', photos / 'a.png'),
  )
  assert done.returncode == 0, done.stderr
  rows = [json.loads(line) for line in done.stdout.splitlines()]
  assert [row['name'] for row in rows] == [
    *(str(photos / 'd.png'), str(photos / 'a.png')),
  ]
  for row in rows:
    assert row['neighbours'][0]['name'] == row['name']
    assert abs(row['neighbours'][0]['distance']) < 1e-5
    assert row['neighbours'][1]['distance'] > 1e-3
  words = ['vit_jax.knn', f'--train={tmp_path / "to"}', photos / 'd.png']
  lines = command(*words, '--k=2').stdout.splitlines()
  assert lines[1].split() == ['distance', 'class', 'name']
  assert lines[2].split() == ['0.0000', '-', str(photos / 'd.png')]
  assert len(lines) == 4
  done = command(*words)
  assert '--k=20: ' in done.stderr
  assert 'has only 3 images' in done.stderr


def test_the_command_finds_the_evaluators_accuracy(
  model, train, tmp_path, command
):
  test = tmp_path / 'test'
  _extract(model, test, 'test')
  words = (f'--train={train}', f'--test={test}', '--json')
  done = command('vit_jax.knn', *words, '--k=1,5', '--weights=uniform')
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout) == {
    '1nn/accuracy': _evaluation(model, 1),
    '5nn/accuracy': _evaluation(model, 5),
    'count': 144,
  }


@pytest.mark.parametrize(
  'word, message',
  [
    ('--weights=distance', "must be one of ['softmax', 'uniform']"),
    ('--k=0', '--k=(0,) must be different numbers, each at least 1'),
  ],
)
def test_wrong_flags_of_neighbours(train, command, word, message):
  done = command('vit_jax.knn', f'--train={train}', f'--test={train}', word)
  assert done.returncode == 1
  assert message in done.stderr


@pytest.mark.gate
def test_the_command_fits_a_linear_probe(model, train, tmp_path, command):
  for split in ('validation', 'test'):
    part = {'validation': 'train[100:200]'}.get(split, split)
    _extract(model, tmp_path / split, part)
  words = [
    'vit_jax.knn',
    f'--train={train}',
    f'--test={tmp_path / "test"}',
    '--json',
  ]
  words += ['--linear_probe', '--l2=1e-1,1e-3']
  done = command(*words)
  assert done.returncode == 1
  assert '--test must not choose among them: give --selection' in done.stderr
  done = command(*words, f'--selection={tmp_path / "validation"}')
  values = json.loads(done.stdout)
  assert values['accuracy'] > 0.7
  assert values['l2'] == 1e-3

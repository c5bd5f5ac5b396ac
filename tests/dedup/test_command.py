"""Guards: the command's files, messages and exit codes; clean evaluations."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.dedup import pictures
from tests.features.test_features import _save
from vit_jax import data, load
from vit_jax.dedup import similar
from vit_jax.dedup.sets import open_set

# A folder with CIFAR-10 photographs in cifar10_small/SPLIT/CLASS, 10,000 and
# 2,000, and with 120 of ImageNet in imagenet_sample/CLASS.
PHOTOS = pathlib.Path(os.environ.get('VIT_JAX_TEST_PHOTOS', 'absent'))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Returns a folder with splits: train/a/2 is test/a/0, train/a/4 test/a/1."""
  folder = tmp_path_factory.mktemp('photos')
  tests = [pictures.picture(seed) for seed in range(4)]
  images = [pictures.picture(50 + seed) for seed in range(6)]
  images[2] = pictures.jpeg(tests[0], 60)
  images[4] = np.ascontiguousarray(tests[1][:, ::-1])
  pictures.write(folder / 'train' / 'a', images)
  pictures.write(folder / 'test' / 'a', tests)
  return folder


def _run(*arguments):
  return subprocess.run(
    [sys.executable, '-m', 'vit_jax.dedup', *arguments],
    capture_output=True,
    text=True,
  )


@pytest.mark.gate
def test_the_command(folder, tmp_path):
  spec, to = f'folder:{folder}', tmp_path / 'dedup'
  done = _run(f'--data={spec}', f'--test={spec}', f'--to={to}')
  assert done.returncode == 0, done.stderr
  assert '1 of 4 images have near-duplicates: exclude_test.json' in done.stdout
  assert '1 of 6 images to leave out: exclude.json' in done.stdout
  clean = data.open_source(f'{spec},exclude={to}/exclude.json')
  assert [clean.name('train', i)[-5] for i in range(5)] == list('01345')
  clean = data.open_source(f'{spec},exclude={to}/exclude_test.json')
  assert clean.info.splits == {'test': 3, 'train': 6}
  again = _run(f'--data={spec}', f'--test={spec}', f'--to={to}', '--flips')
  assert again.returncode == 1
  assert 'flips=False there, True now' in again.stderr


@pytest.mark.gate
def test_parts_and_unreadable_images(folder, tmp_path):
  arguments = [
    *(f'--data=folder:{folder}', f'--test=folder:{folder}', '--flips'),
    *('--block_size=4', f'--to={tmp_path}/dedup'),
  ]
  (folder / 'train' / 'a' / '9.png').write_bytes(b'no image')
  try:
    first = _run(*arguments, '--part=1/2')
    assert first.returncode == 3, first.stderr
    assert '1 blocks of other parts are missing' in first.stdout
    assert not (tmp_path / 'dedup' / 'exclude.json').exists()
    second = _run(*arguments, '--part=0/2')
  finally:
    (folder / 'train' / 'a' / '9.png').unlink()
  assert second.returncode == 3, second.stderr
  assert '2 of 7 images to leave out' in second.stdout
  content = json.loads((tmp_path / 'dedup' / 'exclude.json').read_text())
  assert content['splits']['train']['names'] == ['a/2.png', 'a/4.png']


# Tries all in one process, because imports take seconds. Not in that of the
# tests: other commands define flags of the same names.
_TRY = """
import json, sys
from absl import flags
from absl.testing import flagsaver
from vit_jax.dedup import __main__ as command

flags.FLAGS(['dedup'])
for values in json.load(sys.stdin):
  with flagsaver.flagsaver(**values):
    try:
      command.main()
    except ValueError as error:
      print(error)
"""


def test_wrong_flags(tmp_path):
  messages = {
    '--part=3/2: expected K/N': {'part': '3/2'},
    '--checkpoint with --part=1/2': {'part': '1/2', 'checkpoint': 'x'},
    '--min_correlation=0.05 would take': {'min_correlation': 0.05},
    '2 --test_split for 1 --test': {'test_split': ['a', 'b']},
    'share 1,437 images': {'test_split': ['train']},
    'name the whole data set, digits': {'test': ['digits,exclude=a']},
  }
  usual = {'data': 'digits', 'test': ['digits'], 'to': str(tmp_path)}
  done = subprocess.run(
    [sys.executable, '-c', _TRY],
    input=json.dumps([usual | values for values in messages.values()]),
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  for line, message in zip(lines, messages, strict=True):
    assert message in line
  assert not list(tmp_path.iterdir())


def test_features_find_what_a_naive_search_finds(tmp_path):
  weights = _save(tmp_path / 'tiny.npz', 0)
  model = load(weights)
  one, other = (
    open_set('data', 'digits:0123', split)
    for split in ('train[:40]', 'test[:30]')
  )
  stored = [
    similar.extract(model, tmp_path / 'features', name, images)
    for name, images in (('data', one), ('test_1', other))
  ]
  features = [np.concatenate(list(s)) for s in stored]
  a, b = (f / np.linalg.norm(f, axis=1, keepdims=True) for f in features)
  cosine = a @ b.T
  least = float(np.quantile(cosine, 0.9))
  found = similar.find(one, stored[0], [other], stored[1:], least, inside=False)
  np.testing.assert_array_equal(
    np.stack([found['index'], found['test_index']], 1),
    np.argwhere(cosine >= least),
  )
  np.testing.assert_allclose(
    found['cosine'], cosine[cosine >= least], rtol=1e-5
  )
  inside = similar.find(one, stored[0], [one], stored[:1], least, inside=True)
  expected = np.argwhere(np.tril(a @ a.T, -1) >= least)
  np.testing.assert_array_equal(
    np.stack([inside['index'], inside['test_index']], 1), expected
  )


@pytest.mark.skipif(not PHOTOS.is_dir(), reason='needs $VIT_JAX_TEST_PHOTOS')
@pytest.mark.parametrize(
  'data_spec, test, counts',
  [
    ('classes:imagenet_sample', '', '0 of 120'),
    ('folder:cifar10_small', 'folder:cifar10_small', '46 of 10,000'),
  ],
)
def test_photographs(tmp_path, data_spec, test, counts):
  kind, _, name = data_spec.partition(':')
  arguments = [f'--data={kind}:{PHOTOS}/{name}', f'--to={tmp_path}/dedup']
  if test:
    arguments.append(f'--test={kind}:{PHOTOS}/{name}')
  done = _run(*arguments)
  assert done.returncode == 0, done.stderr
  assert f'{counts} images to leave out' in done.stdout

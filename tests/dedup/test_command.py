"""Guards: the command's files, messages and exit codes."""

import json

import numpy as np
import pytest

from tests.dedup import pictures
from vit_jax import data


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


@pytest.fixture
def run(command):
  return lambda *words: command('vit_jax.dedup', *words)


@pytest.mark.gate
def test_the_command(folder, tmp_path, run):
  spec, to = f'folder:{folder}', tmp_path / 'dedup'
  done = run(f'--data={spec}', f'--test={spec}', f'--to={to}')
  assert done.returncode == 0, done.stderr
  assert '1 of 4 images have near-duplicates: exclude_test.json' in done.stdout
  assert '1 of 6 images to leave out: exclude.json' in done.stdout
  clean = data.open_source(f'{spec},exclude={to}/exclude.json')
  assert [clean.name('train', i)[-5] for i in range(5)] == list('01345')
  clean = data.open_source(f'{spec},exclude={to}/exclude_test.json')
  assert clean.info.splits == {'test': 3, 'train': 6}
  again = run(f'--data={spec}', f'--test={spec}', f'--to={to}', '--flips')
  assert again.returncode == 1
  assert 'flips: false there, true now' in again.stderr


@pytest.mark.gate
def test_parts_and_unreadable_images(folder, tmp_path, run):
  arguments = [
    *(f'--data=folder:{folder}', f'--test=folder:{folder}', '--flips'),
    f'--to={tmp_path}/dedup',
  ]
  (folder / 'train' / 'a' / '9.png').write_bytes(b'no image')
  try:
    first = run(*arguments, '--part=1/2')  # It has no block of the data.
    assert first.returncode == 0, first.stderr
    assert not (tmp_path / 'dedup' / 'exclude.json').exists()
    second = run(*arguments, '--part=0/2')
  finally:
    (folder / 'train' / 'a' / '9.png').unlink()
  assert second.returncode == 3, second.stderr
  content = json.loads((tmp_path / 'dedup' / 'exclude.json').read_text())
  assert content['splits']['train']['names'] == ['a/2.png', 'a/4.png']


@pytest.mark.parametrize(
  'words, message',
  [
    (['--part=3/2'], '--part=3/2'),
    (['--min_correlation=0.05'], '--min_correlation=0.05'),
    (['--test_split=a', '--test_split=b'], '2 --test_split for 1 --test'),
    (['--test_split=train'], 'share 1,437 images'),
  ],
)
def test_wrong_flags(tmp_path, run, words, message):
  done = run('--data=digits', '--test=digits', f'--to={tmp_path}', *words)
  assert done.returncode == 1
  assert message in done.stderr
  assert not list(tmp_path.iterdir())

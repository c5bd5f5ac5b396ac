"""Guards `--merge`: equal images become one, with the labels of all copies."""

import numpy as np
import pytest

from tests.prepare_data import imagenet21k
from tests.prepare_data.test_prepare import facts, hashes, records, run
from vit_jax import data
from vit_jax.prepare_data import report

# The pictures of each class.
CLASSES = {'auk': [0, 1, 2, 3], 'owl': [2, 2, 4, 5], 'wren': [3, 2, 6, 6]}


@pytest.fixture(scope='module')
def birds(tmp_path_factory):
  """Returns a folder of birds, and each picture's classes by its bytes."""
  root, rng = (
    tmp_path_factory.mktemp('data') / 'birds',
    np.random.default_rng(0),
  )
  pictures = [imagenet21k.picture(rng) for _ in range(7)]
  for number, (name, numbers) in enumerate(CLASSES.items()):
    (root / name).mkdir(parents=True)
    for i, picture in enumerate(numbers):
      (root / name / f'{i}{number}.jpg').write_bytes(pictures[picture])
  return root, {
    picture: tuple(i for i, of in enumerate(CLASSES.values()) if number in of)
    for number, picture in enumerate(pictures)
  }


def test_copies_become_one_image_even_of_a_killed_job(
  birds, tmp_path, monkeypatch
):
  spec, job = f'folder:{birds[0]}', {'count': 3, 'merged': True}
  found = facts(run(spec, tmp_path / 'whole', **job))
  assert (found['found'], found['copies'], found['records']) == (12, 5, 7)
  ours = data.open_source(f'arrayrecord:{tmp_path}/whole')
  assert ours.info.multi_label
  made = {one.image: one.label for one in records(ours)}
  assert made == birds[1]
  with monkeypatch.context() as killed:
    killed.setattr(report, 'write', lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      run(spec, tmp_path / 'killed', **job)
  folder = tmp_path / 'killed/birds/1.0.0'
  (folder / '.preparing/train-00001.json').unlink()
  run(spec, tmp_path / 'killed', **job)
  assert hashes(folder) == hashes(tmp_path / 'whole/birds/1.0.0')
  # Without the flag, each file is an image.
  run(spec, tmp_path / 'apart', count=3)
  apart = data.open_source(f'arrayrecord:{tmp_path}/apart').info
  assert (apart.splits['train'], apart.multi_label) == (12, False)


@pytest.mark.parametrize(
  'spec, part', [('folder:{}', (0, 2)), ('digits:24', (0, 1))]
)
def test_what_cannot_be_merged_is_refused(birds, tmp_path, spec, part):
  with pytest.raises(ValueError, match='--merge'):
    run(spec.format(birds[0]), tmp_path, part, merged=True)
  assert not list(tmp_path.iterdir())

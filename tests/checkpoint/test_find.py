"""Guards: `find` resolves each kind of path, and moves work on any store."""

import os

import pytest
from etils import epath

from tests.workdir.buckets.conftest import bucket as bucket
from tests.workdir.buckets.conftest import server as server
from vit_jax import checkpoint
from vit_jax.checkpoint import folders


def _make(folder):
  """Creates a folder that looks like a checkpoint and is not empty."""
  (folder / 'default').mkdir(parents=True)
  (folder / 'default/a').write_text('text')


def test_find(tmp_path):
  run = tmp_path / '3'  # Run directories may be numbers, too.
  for step in ('9', '10', '11.orbax-checkpoint-tmp'):
    _make(run / 'checkpoints' / step)
  newest = run / 'checkpoints' / '10'
  assert checkpoint.find(run) == newest
  assert checkpoint.find(str(run / 'checkpoints')) == newest
  assert checkpoint.find(newest) == newest
  assert checkpoint.find(run / 'checkpoints' / '9').name == '9'
  assert checkpoint.latest_step(run) == 10
  _make(run / 'best/9')
  assert checkpoint.find(run / 'best') == run / 'best/9'


@pytest.mark.parametrize(
  ('name', 'found'),
  [
    ('checkpoints/12', 'the path does not exist'),
    ('5', 'it is a file'),
    ('empty', 'it holds nothing'),
    ('other', r"it holds \['best'\]"),
  ],
)
def test_the_error_says_what_was_found_instead(tmp_path, name, found):
  (tmp_path / '5').write_text('text')
  (tmp_path / 'empty').mkdir()
  # `best` and `final` are no states that the run could resume from.
  _make(tmp_path / 'other/best/3')
  with pytest.raises(ValueError, match=f'No checkpoint at .*{name}: {found}'):
    checkpoint.find(tmp_path / name)


@pytest.mark.parametrize('name', ['best', 'final', 'checkpoints'])
def test_a_run_can_have_any_name(tmp_path, name):
  _make(tmp_path / name / '5')
  _make(tmp_path / name / 'checkpoints/3')
  assert checkpoint.find(tmp_path / name).parts[-2:] == ('checkpoints', '3')


@pytest.mark.parametrize('kind', ['disk', 'mounted', 'bucket'])
def test_nothing_is_lost_by_moving_aside(tmp_path, monkeypatch, request, kind):
  def fail(*_):
    raise OSError(5, 'Input/output error')

  run = epath.Path(tmp_path)
  if kind == 'mounted':  # Some mounts cannot rename folders.
    monkeypatch.setattr(os, 'rename', fail)
  elif kind == 'bucket':
    request.getfixturevalue('bucket')
    run = epath.Path('gs://bucket/run')
  for name in ('8', '8-2'):
    _make(run / '8')
    moved = folders.move_aside(run / '8', run / 'damaged')
    assert moved == run / 'damaged' / name
    assert (moved / 'default/a').read_text() == 'text'
    assert not (run / '8').exists()

"""Guards: `find` resolves each kind of path to the right checkpoint."""

import pytest

from vit_jax import checkpoint


def _make(folder):
  """Creates a folder that looks like a checkpoint and is not empty."""
  (folder / 'default').mkdir(parents=True)


def test_find(tmp_path):
  run = tmp_path / '3'  # Run directories may be numbers, too.
  for step in ('9', '10', '11.orbax-checkpoint-tmp'):
    _make(run / 'checkpoints' / step)
  (run / 'checkpoints/99').mkdir()  # Empty.
  newest = run / 'checkpoints' / '10'
  assert checkpoint.find(run) == newest
  assert checkpoint.find(str(run / 'checkpoints')) == newest
  assert checkpoint.find(newest) == newest
  assert checkpoint.find(run / 'checkpoints' / '9').name == '9'


@pytest.mark.parametrize(
  ('name', 'found'),
  [
    ('absent', 'the path does not exist'),
    ('checkpoints/12', 'the path does not exist'),
    ('file', 'it is a file'),
    ('5', 'it is a file'),
    ('empty', 'it holds nothing'),
    ('other', r"it holds \['a', 'b'\]"),
  ],
)
def test_the_error_says_what_was_found_instead(tmp_path, name, found):
  (tmp_path / 'file').write_text('text')
  (tmp_path / '5').write_text('text')
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'other/a').mkdir(parents=True)
  (tmp_path / 'other/b').mkdir()
  with pytest.raises(ValueError, match=f'No checkpoint at .*{name}: {found}'):
    checkpoint.find(tmp_path / name)


def test_find_params(tmp_path):
  for kind in ('best', 'final'):
    for step in ('9', '10', '10.replaced'):
      _make(tmp_path / kind / step)
    assert checkpoint.find(tmp_path / kind) == tmp_path / kind / '10'
    assert checkpoint.find(tmp_path / kind / '9') == tmp_path / kind / '9'
  # `best` and `final` are no states that the run could resume from.
  with pytest.raises(ValueError, match=r"holds \['best', 'final'\]"):
    checkpoint.find(tmp_path)


@pytest.mark.parametrize('name', ['best', 'final', 'checkpoints'])
def test_a_run_can_have_any_name(tmp_path, name):
  _make(tmp_path / name / '5')
  _make(tmp_path / name / 'checkpoints/3')
  assert checkpoint.find(tmp_path / name).parts[-2:] == ('checkpoints', '3')

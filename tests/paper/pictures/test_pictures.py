"""Guards: pictures of weights are drawn when needed; a note says if not."""

import os
import sys

import pytest
from etils import epath

from vit_jax.paper import pictures
from vit_jax.paper.pictures import Panel
from vit_jax.paper.runs import Pretraining

_ONE, _TWO = Pretraining('ViT-B/16'), Pretraining('ViT-B/32')
_PANELS = [Panel('filters', 'one', _ONE), Panel('filters', 'two', _TWO)]
# Replaces the process that draws: logs the call and writes empty files.
_DRAWS = """
import json, os, pathlib, sys
request = json.load(sys.stdin)
stem = request['stem']
with open(stem + '.calls', 'a') as file:
  file.write(os.environ['JAX_PLATFORMS'] + '\\n')
titles = [panel['title'] for panel in request['panels']]
for end in ('.png', '.pdf', '.csv'):
  pathlib.Path(stem + end).touch()
stamp = request | {'drawn': titles, 'failures': FAILURES}
pathlib.Path(request['stamp']).write_text(json.dumps(stamp))
"""


class _Finished:
  """A stand-in for `Results` that has only folders."""

  mark = 'MINIATURE'

  def __init__(self, folders):
    self.folders = folders

  def folder(self, node):
    return self.folders.get(node)


@pytest.fixture
def runs(tmp_path):
  """The folders of two finished runs, without checkpoints."""
  folders = {}
  for node in (_ONE, _TWO):
    folders[node] = epath.Path(tmp_path / node.model.replace('/', '_'))
    folders[node].mkdir()
    (folders[node] / 'DONE').write_text('20\n')
    os.utime(folders[node] / 'DONE', (1000, 1000))
  return folders


@pytest.fixture
def draw(tmp_path, monkeypatch):
  """Calls `pictures.draw` with a process that only logs its calls."""
  monkeypatch.setattr(pictures, '_deleted', lambda workdir: '')
  (tmp_path / 'figures').mkdir()

  def call(folders, failures=(), code=_DRAWS, panels=_PANELS):
    code = code.replace('FAILURES', repr(list(failures)))
    monkeypatch.setattr(pictures, '_COMMAND', (sys.executable, '-c', code))
    return pictures.draw(
      'figure9', panels, _Finished(folders), tmp_path / 'figures'
    )

  return call


def _calls(tmp_path):
  path = tmp_path / 'figures/figure9.calls'
  return path.read_text().split() if path.exists() else []


def test_unchanged_pictures_are_not_drawn_again(runs, draw, tmp_path):
  for _ in range(2):
    drawn = draw(runs)
    assert drawn.titles == ('one', 'two')
    assert drawn.notes == ()
    assert drawn.numbers == tmp_path / 'figures/figure9.csv'
  # The process draws on the CPU, whatever devices there are.
  assert _calls(tmp_path) == ['cpu']


@pytest.mark.parametrize(
  'change',
  [
    lambda runs, folder: (runs[_ONE] / 'DONE').write_text('30\n'),
    lambda runs, folder: os.utime(runs[_TWO] / 'DONE', (2000, 2000)),
    lambda runs, folder: (folder / 'figure9.pdf').unlink(),
    lambda runs, folder: (folder / 'figure9.drawn.json').write_text('{'),
    lambda runs, folder: runs.pop(_TWO),
  ],
  ids=['longer', 'made anew', 'no file', 'no stamp', 'one run less'],
)
def test_changed_runs_are_drawn_again(change, runs, draw, tmp_path):
  draw(runs)
  change(runs, tmp_path / 'figures')
  draw(runs)
  assert len(_calls(tmp_path)) == 2


def test_moved_runs_are_not_drawn_again(runs, draw, tmp_path):
  draw(runs)
  runs[_ONE] = runs[_ONE].rename(tmp_path / 'moved')
  draw(runs)
  assert len(_calls(tmp_path)) == 1


def test_a_missing_run_is_noted_once(runs, draw, tmp_path):
  del runs[_ONE]
  drawn = draw(runs, panels=[_PANELS[0], *_PANELS])
  assert drawn.titles == ('two',)
  assert drawn.notes == ('Missing: the run ViT-B/16, JFT-300M.',)
  drawn = draw({})
  assert drawn.titles == ()
  assert len(drawn.notes) == 2
  assert len(_calls(tmp_path)) == 1


def test_a_killed_drawing_process_becomes_a_note(runs, draw, tmp_path):
  draw(runs)
  os.utime(runs[_TWO] / 'DONE', (2000, 2000))
  code = "import sys; print('so'); print('out of memory'); sys.exit(3)"
  drawn = draw(runs, code=code)
  assert drawn.titles == ()
  assert drawn.notes == ('Not drawn (exit code 3): out of memory',)
  # After the failure nothing counts as drawn, not even for the earlier runs.
  os.utime(runs[_TWO] / 'DONE', (1000, 1000))
  draw(runs)
  assert len(_calls(tmp_path)) == 2


def test_pictures_stay_if_weights_are_deleted(
  runs, draw, tmp_path, monkeypatch
):
  monkeypatch.setattr(
    pictures,
    '_deleted',
    lambda workdir: 'gone' if workdir == os.fspath(runs[_TWO]) else '',
  )
  for _ in range(2):
    drawn = draw(runs)
    assert drawn.titles == ('one',)
    assert drawn.notes == ('Not drawn: ViT-B/32, JFT-300M: gone',)
  assert len(_calls(tmp_path)) == 1
  monkeypatch.setattr(pictures, '_deleted', lambda workdir: '')
  assert draw(runs).titles == ('one', 'two')
  monkeypatch.setattr(pictures, '_deleted', lambda workdir: 'gone')
  assert draw(runs).titles == ('one', 'two')
  assert len(_calls(tmp_path)) == 2


def test_a_run_without_checkpoints_starts_no_process(runs, tmp_path):
  drawn = pictures.draw(
    'figure9', _PANELS, _Finished(runs), tmp_path / 'figures'
  )
  assert drawn.titles == ()
  assert [note.split(':')[0] for note in drawn.notes] == 2 * ['Not drawn']
  assert 'checkpoint' in drawn.notes[0]
  assert not (tmp_path / 'figures').exists()

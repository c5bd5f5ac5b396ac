"""Guards: pictures and numbers of weights are made when needed, and kept."""

import os
import types

import pytest
from etils import epath

from vit_jax.paper import inside
from vit_jax.paper.inside import Panel
from vit_jax.paper.runs import Pretraining, Results
from vit_jax.sweep import Run, Study

ONE, TWO = Pretraining('ViT-B/16'), Pretraining('ViT-B/32')
PANELS = [Panel('filters', 'one', ONE), Panel('filters', 'two', TWO)]


@pytest.fixture
def runs(tmp_path):
  """The folders of two finished runs, by their pre-trainings."""
  folders = {}
  for start in (ONE, TWO):
    folders[start] = epath.Path(tmp_path / start.model.replace('/', '_'))
    folders[start].mkdir()
    (folders[start] / 'DONE').write_text('20\n')
    os.utime(folders[start] / 'DONE', (1000, 1000))
  return folders


def _results(folders):
  studies = [Study(s.name, finals=[Run(s.name, 'c.py')]) for s in (ONE, TWO)]
  places = {start.name: folder for start, folder in folders.items()}
  return Results(
    studies, {name: {} for name in places}, workdir=places.get, scale='mini'
  )


def _kinds(*names):
  """Returns kind -> what reads it, which the fake `number` takes as a name."""
  return dict(zip(names, names, strict=True))


@pytest.fixture
def reader(monkeypatch):
  """Replaces what reads weights; has what was asked, and its failures."""
  found = types.SimpleNamespace(drawn=[], asked=[], failures=[])

  def draw(panels, stem, mark):
    found.drawn.append(len(panels))
    for end in ('png', 'pdf', 'csv'):
      stem.with_suffix(f'.{end}').touch()
    return [panel['title'] for panel in panels], found.failures

  def number(kind, workdir):
    found.asked.append(kind)
    if kind == 'bad':
      raise ValueError('no.')
    return len(kind)

  monkeypatch.setattr(inside.pictures, 'draw', draw)
  monkeypatch.setattr(inside.measuring, 'number', number)
  return found


# Pictures. --------------------------------------------------------------------


@pytest.fixture
def draw(tmp_path):
  folder = tmp_path / 'figures'
  folder.mkdir()

  def call(folders, panels=PANELS):
    return inside.draw('figure9', panels, _results(folders), folder)

  return call


def test_unchanged_pictures_are_not_drawn_again(runs, draw, reader, tmp_path):
  for _ in range(2):
    assert draw(runs) == (['one', 'two'], [])
  runs[ONE] = runs[ONE].rename(tmp_path / 'moved')
  assert draw(runs) == (['one', 'two'], [])
  assert reader.drawn == [2]


@pytest.mark.parametrize(
  'change',
  [
    lambda runs, folder: (runs[ONE] / 'DONE').write_text('30\n'),
    lambda runs, folder: os.utime(runs[TWO] / 'DONE', (2000, 2000)),
    lambda runs, folder: (folder / 'figure9.pdf').unlink(),
    lambda runs, folder: (folder / 'figure9.drawn.json').unlink(),
    lambda runs, folder: runs.pop(TWO),
  ],
  ids=['longer', 'made anew', 'no file', 'no stamp', 'one run less'],
)
def test_changed_runs_are_drawn_again(change, runs, draw, reader, tmp_path):
  draw(runs)
  change(runs, tmp_path / 'figures')
  draw(runs)
  assert len(reader.drawn) == 2


def test_panels_that_failed_are_tried_again(runs, draw, reader):
  reader.failures = ['no images']
  for _ in range(2):
    assert draw(runs)[1] == ['no images']
  assert len(reader.drawn) == 2


def test_a_missing_run_is_noted_once(runs, draw, reader):
  del runs[ONE]
  titles, [note] = draw(runs, [PANELS[0], *PANELS])
  assert titles == ['two']
  assert ONE.name in note
  titles, notes = draw({})
  assert (len(titles), len(notes)) == (0, 2)
  assert len(reader.drawn) == 1


# Numbers. ---------------------------------------------------------------------


def test_finished_runs_are_measured_once(runs, reader, tmp_path):
  del runs[TWO]
  results, folder = _results(runs), tmp_path / 'measured'
  wanted = {ONE: _kinds('far', 'near_'), TWO: _kinds('far')}
  for _ in range(2):
    found = inside.measure(wanted, results, folder)
    assert found == ({ONE.name: {'far': 3, 'near_': 5}}, [])
  # Only what is new is measured.
  wanted[ONE] |= _kinds('lines')
  found, _ = inside.measure(wanted, results, folder)
  assert found[ONE.name] == {'far': 3, 'near_': 5, 'lines': 5}
  assert reader.asked == ['far', 'near_', 'lines']
  # A run that was made anew has new numbers.
  (runs[ONE] / 'DONE').write_text('30\n')
  inside.measure(wanted, results, folder)
  assert reader.asked[3:] == ['far', 'lines', 'near_']


def test_failures_are_named_and_tried_again(runs, reader, tmp_path):
  for _ in range(2):
    found, failures = inside.measure(
      {ONE: _kinds('bad', 'far')}, _results(runs), tmp_path
    )
    assert found == {ONE.name: {'far': 3}}
    assert failures == [f'{ONE.name}: bad: no.']
  assert reader.asked == ['bad', 'far', 'bad']

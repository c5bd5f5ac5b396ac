"""Guards: pictures and numbers of weights are made when needed, and kept."""

import json
import os
import pathlib
import subprocess
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


@pytest.fixture
def process(monkeypatch):
  """Replaces the process that reads weights; has its calls and its end."""
  found = types.SimpleNamespace(calls=[], asked=[], failures=[], code=0)

  def run(command, *, input, env, **_):
    found.calls.append(command[-1])
    assert env['JAX_PLATFORMS'] == 'cpu'
    request = json.loads(input)
    if found.code:
      return subprocess.CompletedProcess((), found.code, 'a\nkilled\n')
    if command[-1] == 'draw':
      titles = [panel['title'] for panel in request['panels']]
      for end in ('png', 'pdf', 'csv'):
        pathlib.Path(f'{request["stem"]}.{end}').touch()
      stamp = request | {'drawn': titles, 'failures': found.failures}
      pathlib.Path(request['stamp']).write_text(json.dumps(stamp))
      return subprocess.CompletedProcess((), 0, '')
    measured = {
      name: {
        'numbers': {kind: len(kind) for kind in of['kinds'] if kind != 'bad'},
        'failures': ['bad: no.'] if 'bad' in of['kinds'] else [],
      }
      for name, of in request.items()
    }
    found.asked.append({n: of['kinds'] for n, of in request.items()})
    return subprocess.CompletedProcess(
      (), 0, f'warning\n{json.dumps(measured)}'
    )

  monkeypatch.setattr(inside.subprocess, 'run', run)
  return found


# Pictures. --------------------------------------------------------------------


@pytest.fixture
def draw(tmp_path):
  folder = tmp_path / 'figures'
  folder.mkdir()

  def call(folders, panels=PANELS):
    return inside.draw('figure9', panels, _results(folders), folder)

  return call


def test_unchanged_pictures_are_not_drawn_again(runs, draw, process, tmp_path):
  for _ in range(2):
    assert draw(runs) == (['one', 'two'], [])
  runs[ONE] = runs[ONE].rename(tmp_path / 'moved')
  assert draw(runs) == (['one', 'two'], [])
  assert process.calls == ['draw']


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
def test_changed_runs_are_drawn_again(change, runs, draw, process, tmp_path):
  draw(runs)
  change(runs, tmp_path / 'figures')
  draw(runs)
  assert len(process.calls) == 2


def test_panels_that_failed_are_tried_again(runs, draw, process):
  process.failures = ['no images']
  for _ in range(2):
    assert draw(runs)[1] == ['no images']
  assert len(process.calls) == 2


def test_a_missing_run_is_noted_once(runs, draw, process):
  del runs[ONE]
  titles, [note] = draw(runs, [PANELS[0], *PANELS])
  assert titles == ['two']
  assert ONE.name in note
  titles, notes = draw({})
  assert (len(titles), len(notes)) == (0, 2)
  assert len(process.calls) == 1


def test_a_killed_process_becomes_a_note(runs, draw, process):
  draw(runs)
  os.utime(runs[TWO] / 'DONE', (2000, 2000))
  process.code = 3
  titles, [note] = draw(runs)
  assert not titles
  assert note.endswith('(exit code 3): killed')
  # After the failure nothing counts as drawn, not even for the earlier runs.
  os.utime(runs[TWO] / 'DONE', (1000, 1000))
  process.code = 0
  assert draw(runs) == (['one', 'two'], [])
  assert len(process.calls) == 3


# Numbers. ---------------------------------------------------------------------


def test_finished_runs_are_measured_once(runs, process, tmp_path):
  del runs[TWO]
  results, folder = _results(runs), tmp_path / 'measured'
  wanted = {ONE: {'far', 'near_'}, TWO: {'far'}}
  for _ in range(2):
    found = inside.measure(wanted, results, folder)
    assert found == ({ONE.name: {'far': 3, 'near_': 5}}, [])
  # Only what is new is measured.
  wanted[ONE].add('lines')
  found, _ = inside.measure(wanted, results, folder)
  assert found[ONE.name] == {'far': 3, 'near_': 5, 'lines': 5}
  assert process.asked == [{ONE.name: ['far', 'near_']}, {ONE.name: ['lines']}]
  # A run that was made anew has new numbers.
  (runs[ONE] / 'DONE').write_text('30\n')
  inside.measure(wanted, results, folder)
  assert process.asked[-1] == {ONE.name: ['far', 'lines', 'near_']}


def test_failures_are_named_and_tried_again(runs, process, tmp_path):
  for _ in range(2):
    found, failures = inside.measure(
      {ONE: {'bad', 'far'}}, _results(runs), tmp_path
    )
    assert found == {ONE.name: {'far': 3}}
    assert failures == [f'{ONE.name}: bad: no.']
  assert process.asked == [{ONE.name: ['bad', 'far']}, {ONE.name: ['bad']}]
  process.code = -9
  found, [failure] = inside.measure({TWO: {'far'}}, _results(runs), tmp_path)
  assert found == {TWO.name: {}}
  assert failure.endswith('(exit code -9): killed')

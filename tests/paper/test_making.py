"""Guards: a failure to run, measure or draw does not stop the other steps."""

import dataclasses
import re

import pytest
from etils import epath

from vit_jax.paper import items, making, overview
from vit_jax.paper.design import Design
from vit_jax.paper.items.item import Item
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Section
from vit_jax.paper.runs import Pretraining
from vit_jax.runtime import errors
from vit_jax.sweep import Run, Study, Sweep, state
from vit_jax.sweep.commands import Folders

MINI = Design('mini', 3)


@pytest.fixture
def done(monkeypatch, tmp_path):
  """Records what `_main` does with two items; only `runs` has runs."""
  found = []

  def render(results, pictures):
    found.append('drawn')
    return Section('runs', 'Runs', notes=('a note',))

  monkeypatch.setattr(
    items,
    'ITEMS',
    {
      'runs': Item('runs', 'Runs', (Pretraining('ViT-B/16'),), render),
      'speed': Item(
        'speed',
        'Speed',
        (),
        lambda *_: Section('speed', 'Speed'),
        lambda scale, folder: found.append(f'measured {scale}'),
        lambda scale, folder: (0, 7),
      ),
    },
  )
  return found


def _folders(folder):
  return Folders(folder, epath.Path(folder))


def _main(folder, run=None, *, render=False, wait=making.WAIT):
  """Does what the command does, with all items."""
  chosen, where = [*items.ITEMS.values()], _folders(folder)
  failures = []
  if not render:
    failures = making.make(chosen, where, scale='mini', run=run)
  making.finish(chosen, Sweep([]), where, failures, design=MINI, wait=wait)


def _fail(error):
  def fail(*args, **options):
    raise error

  return fail


def _replace(monkeypatch, name, **changes):
  item = items.ITEMS[name]
  changed = dataclasses.replace(item, **changes)
  monkeypatch.setitem(items.ITEMS, name, changed)


def test_runs_then_measurements_then_pages(done, tmp_path):
  _main(tmp_path, lambda: done.append('ran'))
  assert done == ['ran', 'measured mini', 'drawn']
  assert 'a note' in (tmp_path / 'results.md').read_text()
  assert (tmp_path / 'measured').is_dir()


@pytest.mark.parametrize('asked', ['runs', 'speed'])
def test_what_nobody_asked_for_is_folded(done, tmp_path, asked):
  del done
  making.finish(
    [items.ITEMS[asked]],
    Sweep([]),
    _folders(tmp_path),
    [],
    design=MINI,
  )
  _, *sections = (tmp_path / 'results.md').read_text().split('\n## ')
  folded = {
    section.partition('.')[0]: page_parts.UNFOLD in section
    for section in sections
  }
  # An item with runs is shown only if it is asked for, or one is finished.
  assert folded['Speed'] == (asked != 'speed')
  assert not folded.get('Runs')


def test_items_beyond_the_paper_are_shown_only_if_chosen(
  done, tmp_path, monkeypatch
):
  del done
  monkeypatch.setattr(overview, 'progress', lambda *_: (1, 2))
  _replace(monkeypatch, 'speed', beyond=True)
  where, page = _folders(tmp_path), tmp_path / 'results.md'
  for name, shown in (('runs', False), ('speed', True)):
    making.finish([items.ITEMS[name]], Sweep([]), where, [], design=MINI)
    assert ('## Speed' in page.read_text()) == shown
  # One with runs that are shared is no exception.
  _replace(monkeypatch, 'runs', beyond=True)
  making.finish([items.ITEMS['speed']], Sweep([]), where, [], design=MINI)
  assert '## Runs' not in page.read_text()


@pytest.mark.parametrize('measured', [0, 3])
def test_what_goes_beyond_the_paper_is_shown_once_it_is_there(
  done, tmp_path, monkeypatch, measured
):
  del done
  _replace(monkeypatch, 'speed', beyond=True, measured=lambda *_: (measured, 7))
  where = _folders(tmp_path)
  making.finish([items.ITEMS['runs']], Sweep([]), where, [], design=MINI)
  page = (tmp_path / 'results.md').read_text()
  assert ('## Speed' in page) == bool(measured)


@pytest.mark.parametrize(
  ('design', 'status'),
  [
    (MINI, 'exploration. The set-up was not registered'),
    (
      dataclasses.replace(MINI, confirms='confirmation: of this'),
      'confirmation',
    ),
    (Design('paper', 1), None),
  ],
)
def test_a_page_says_whether_it_explores_or_confirms(
  done, tmp_path, design, status
):
  del done
  making.finish(
    [items.ITEMS['speed']], Sweep([]), _folders(tmp_path), [], design=design
  )
  found = re.findall(
    '^- status: (.*)', (tmp_path / 'results.md').read_text(), re.M
  )
  assert len(found) == bool(status)
  assert not status or found[0].startswith(status)


def test_rendering_runs_and_measures_nothing(done, tmp_path):
  _main(tmp_path, render=True)
  assert done == ['drawn']


def test_all_failures_are_reported_after_the_pages_are_written(
  done, tmp_path, monkeypatch
):
  run = _fail(ValueError('not all runs finished'))
  _replace(monkeypatch, 'speed', measure=_fail(RuntimeError('no device')))
  _replace(monkeypatch, 'runs', render=_fail(KeyError('model')))
  with pytest.raises(ValueError, match='not all') as caught:
    _main(tmp_path, run)
  assert str(caught.value).splitlines() == [
    'not all runs finished',
    'no device',
    "runs: could not be drawn: KeyError: 'model'",
  ]
  assert 'could not be drawn' in (tmp_path / 'results.md').read_text()
  assert (tmp_path / 'index.html').exists()


def test_failed_runs_do_not_prevent_other_measurements(
  done, tmp_path, monkeypatch
):
  run = _fail(ValueError('not all runs finished'))
  with pytest.raises(ValueError, match='not all runs finished'):
    _main(tmp_path, run)
  assert done == ['measured mini', 'drawn']


def test_a_failed_write_does_not_hide_other_failures(
  done, tmp_path, monkeypatch
):
  run = _fail(ValueError('not all runs finished'))
  monkeypatch.setattr(making.page, 'write', _fail(OSError('disk full')))
  with pytest.raises(ValueError, match='not all runs finished\ndisk full'):
    _main(tmp_path, run)


@pytest.mark.parametrize(
  'error', [errors.PreemptedError('stopped'), state.InUseError('in use')]
)
def test_an_interruption_leaves_the_pages_unchanged(
  done, tmp_path, monkeypatch, error
):
  run = _fail(error)
  with pytest.raises(type(error)):
    _main(tmp_path, run)
  assert done == []
  assert list(tmp_path.iterdir()) == []


def test_nothing_is_measured_while_another_launcher_runs(done, tmp_path):
  with (
    state.lock(tmp_path),
    pytest.raises(state.InUseError, match='another launcher'),
  ):
    _main(tmp_path, lambda: done.append('ran'))
  assert done == ['ran']
  assert not (tmp_path / 'index.html').exists()


def test_pages_are_drawn_by_one_process_at_a_time(done, tmp_path):
  with (
    state.lock(tmp_path, 'pages.lock'),
    pytest.raises(ValueError, match='another process that draws its pages'),
  ):
    _main(tmp_path, render=True, wait=0.3)
  assert done == []
  # The launcher's lock does not keep another process from drawing.
  with state.lock(tmp_path):
    _main(tmp_path, render=True)
  assert done == ['drawn']


@pytest.mark.parametrize(
  ('count', 'shown'), [(0, 'not measured'), (3, '3 of 7 measured')]
)
def test_the_list_counts_measured_pairs(
  done, tmp_path, monkeypatch, count, shown
):
  _replace(monkeypatch, 'speed', measured=lambda *_: (count, 7))
  chosen = [*items.ITEMS.values()]
  text = overview.text(chosen, Sweep([]), _folders(tmp_path), MINI)
  [_, line] = text.splitlines()
  assert ' '.join(line.split()) == f'speed {shown} Speed'
  assert done == []


def test_the_list_reads_each_run_once(done, tmp_path, monkeypatch):
  item = items.ITEMS['runs']
  chosen = [item, dataclasses.replace(item, name='again')]
  [node] = item.nodes
  study = Study(node.name, finals=[Run('r/a', 'configs/quickstart.py')])
  read = []
  monkeypatch.setattr(state, 'final_metrics', read.append)
  text = overview.text(chosen, Sweep([study]), _folders(tmp_path), MINI)
  assert text.count('0 of 1') == 2
  assert len(read) == 1

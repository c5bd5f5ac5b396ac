"""Guards: a failure to run, measure or draw does not stop the other steps."""

import dataclasses
import re

import pytest
from etils import epath

from vit_jax.paper import items, making, overview
from vit_jax.paper.design import Design
from vit_jax.paper.items.item import Item
from vit_jax.paper.report import Section
from vit_jax.paper.runs import Pretraining
from vit_jax.runtime import errors
from vit_jax.sweep import Sweep, state
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

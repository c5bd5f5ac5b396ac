"""Guards: pages show what work directories hold; a failure stops no others."""

import dataclasses
import json
import re

import pytest
from etils import epath

from tests import run_files
from vit_jax import config as config_lib
from vit_jax.paper import inside, items, making
from vit_jax.paper.claims import Claim
from vit_jax.paper.item import Item
from vit_jax.paper.making import Workplace
from vit_jax.paper.page import texts
from vit_jax.paper.runs import FEW_SHOT, Pretraining, Results
from vit_jax.runtime import errors
from vit_jax.sweep import reading, state
from vit_jax.sweep.commands import Folders

# A run of Table 8, of a curve of Figure 9, and of the claims of both.
SHARED = 'ViT-B_16,JFT-300M,7-epochs/run=pretraining'


def _place(folder, scale='mini', seeds=3, **options):
  where = Folders(folder, epath.Path(folder))
  return Workplace(where, scale, seeds, **options)


def _sections(chosen, place):
  return making.sections(chosen, place, place.results(chosen))


# Sections. --------------------------------------------------------------------


@pytest.fixture(scope='module')
def sweep():
  return reading.load('configs/sweeps/reproduce.py:table8+figure9,seeds=3')


@pytest.fixture
def place(tmp_path, sweep):
  """All runs of Table 8 and Figure 9 are finished."""
  found = _place(tmp_path, 'paper', studies=sweep.studies)
  config = config_lib.default()
  config.total_steps = 9
  config.evals.few_shot = config_lib.evaluation(
    'test', 'few_shot', train_split='train'
  )
  for study in sweep.studies:
    for run in study.all_runs():
      rows = [{'step': step, FEW_SHOT: step / 10} for step in (4, 9)]
      workdir = found.where.workdir(run.name)
      run_files.leave(workdir, *rows, config=config, done=9)
  return found


def _rendered(place):
  """Returns missing cells, answers, and words of Table 8 and Figure 9."""
  chosen = [items.ITEMS['table8'], items.ITEMS['figure9']]
  found, failures = _sections(chosen, place)
  assert failures == []
  table = found[0].blocks[0]
  missing = [at for at, cell in table.cells.items() if cell.ours is None]
  answers = [claim.answer for _, claim in texts.claims(found)]
  return missing, answers, [texts.status(section).word for section in found]


def test_a_run_without_metrics_is_missing_everywhere(place):
  assert _rendered(place) == ([], ['undecided'] * 3, ['complete'] * 2)
  (place.where.workdir(SHARED) / 'metrics.jsonl').unlink()
  # It is a seed of one cell only.
  assert _rendered(place) == (
    [('1-D', 'Stem')],
    ['missing'] * 3,
    ['partly there'] * 2,
  )


def test_the_numbers_of_claims_and_the_minutes_of_runs_are_kept(place, sweep):
  names = {s.name: run.name for s in sweep.studies for run in s.all_runs()}
  token, high, low = items.ITEMS['figure9'].shown('paper')
  for seed, start in enumerate(token.seeds(3)):
    path = place.where.workdir(names[start.name]) / 'metrics.jsonl'
    last = {'step': 9, FEW_SHOT: seed / 10, 'goodput/steps_seconds': 90.0}
    path.write_text(json.dumps(last) + '\n')
  gone = place.where.workdir(names[high.seeds(3)[2].name])
  (gone / 'metrics.jsonl').unlink()
  chosen = [items.ITEMS['figure9']]
  _sections(chosen, place)
  found = json.loads((place.where.local / 'numbers.json').read_text())
  [values] = found['values'].values()
  # A mean with a missing run is left out.
  assert values == {
    token.name: [0, pytest.approx(10), pytest.approx(20)],
    low.name: [pytest.approx(90)] * 3,
  }
  minutes = {names[start.name]: 1.5 for start in token.seeds(3)}
  assert found['minutes'] == minutes


def test_claims_about_weights_have_the_numbers_of_each_run(
  tmp_path, monkeypatch
):
  asked = {}

  def measure(wanted, results, folder):
    asked.update(wanted)
    assert folder == tmp_path / 'measured'
    numbers = {
      start.name: {'distance_by_depth': 0.5 + start.seed / 100}
      for start in wanted
    }
    return numbers, ['ViT-L/32: no weights']

  monkeypatch.setattr(inside, 'measure', measure)
  table = items.ITEMS['equivariance']
  [found, _], failures = _sections(
    [items.ITEMS['figure7'], table], _place(tmp_path, seeds=10)
  )
  # What a table shows is measured too.
  for mean in table.means('mini'):
    assert mean.measure.inside in asked[mean.start]
  assert {*asked[Pretraining('ViT-L/16', epochs=14, seed=9)]} == {
    *('distance_by_depth', 'far_head', 'near_head')
  }
  assert failures == ['ViT-L/32: no weights']
  assert [c.answer for c in found.blocks] == ['yes'] + ['missing'] * 5


def test_all_claims_of_a_page_are_one_family(tmp_path, monkeypatch):
  """Two of three claims that are asked have no runs."""
  kind, start = 'far_head', Pretraining('ViT-B/16')
  claims = [
    Claim(
      key,
      key,
      {'x': inside.NUMBERS[kind](of)},
      '',
      None,
      'All alike.' * (key == 'd'),
    )
    for key, of in zip(
      'abcd', (start, *[Pretraining('ViT-B/32')] * 3), strict=True
    )
  ]
  chosen = [
    Item(name, name, lambda *_: [], claims=lambda _, c=c: c)
    for name, c in (('one', claims[:2]), ('other', claims[2:]))
  ]
  # Alone, 2 in 2^6 or 2^8 are 0.031 or 0.0078.
  for count, answer in ((6, 'undecided'), (8, 'yes')):
    numbers = {s.name: {kind: 1.0} for s in start.seeds(count)}
    monkeypatch.setattr(inside, 'measure', lambda *_, n=numbers: (n, []))
    found, _ = _sections(chosen, _place(tmp_path, seeds=count))
    assert [c.answer for _, c in texts.claims(found)] == [
      *(answer, 'missing', 'missing', 'not in miniature')
    ]


@pytest.mark.parametrize(
  ('error', 'message'),
  [
    (ValueError('no\nfile'), 'could not be drawn: no file'),
    (KeyError('model'), "could not be drawn: KeyError: 'model'"),
  ],
)
def test_an_item_that_fails_leaves_the_others(tmp_path, error, message):
  chosen = [
    Item('a', 'A', _fail(error)),
    Item('b', 'B', lambda *_: ['here']),
  ]
  found, failures = _sections(chosen, _place(tmp_path))
  assert failures == [f'a: {message}']
  assert [section.missing for section in found] == [(message,), []]
  assert texts.status(found[0]).word == 'missing'
  assert found[1].notes == ['here']


# Steps. -----------------------------------------------------------------------


@pytest.fixture
def done(monkeypatch):
  """Records what is done with two items; only `runs` has runs."""
  found = []

  def render(results, pictures):
    found.append('drawn')
    return ['a note']

  every = {
    'runs': Item(
      'runs', 'Runs', render, lambda scale: [Pretraining('ViT-B/16')]
    ),
    'speed': Item(
      'speed',
      'Speed',
      lambda *_: [],
      measure=lambda results, folder, data: found.append('measured'),
      measured=lambda scale, folder: (0, 7),
    ),
  }
  monkeypatch.setattr(items, 'ITEMS', every)
  return found


def _main(folder, run=None, *, render=False, data=()):
  """Does what the command does, with all items."""
  chosen, place, failures = [*items.ITEMS.values()], _place(folder), []
  if not render:
    failures = making.make(chosen, place, run=run, data=dict(data))
  making.finish(chosen, place, failures)


def _fail(error):
  def fail(*args, **options):
    raise error

  return fail


def _replace(monkeypatch, name, **changes):
  changed = dataclasses.replace(items.ITEMS[name], **changes)
  monkeypatch.setitem(items.ITEMS, name, changed)


def test_runs_then_measurements_then_pages(done, tmp_path, monkeypatch):
  _main(tmp_path, lambda: done.append('ran'))
  assert done == ['ran', 'measured', 'drawn']
  assert 'a note' in (tmp_path / 'results.md').read_text()
  assert (tmp_path / 'measured').is_dir()
  # Without the data that it lacks, nothing is measured.
  _replace(monkeypatch, 'speed', lacking='Give data.')
  done.clear()
  _main(tmp_path)
  assert done == ['drawn']
  _main(tmp_path, data={'speed': '/data'})
  assert done == ['drawn', 'measured', 'drawn']


@pytest.mark.parametrize(
  ('beyond', 'chosen', 'shown'),
  [
    # Items with finished runs, or without any, are shown.
    *((None, 'speed', ['Runs', 'Speed']), (None, 'runs', ['Runs', 'Speed'])),
    # Beyond the paper, only if chosen.
    *(('speed', 'runs', ['Runs']), ('speed', 'speed', ['Runs', 'Speed'])),
    ('runs', 'speed', ['Speed']),
  ],
)
def test_which_items_a_page_shows(
  done, tmp_path, monkeypatch, beyond, chosen, shown
):
  monkeypatch.setattr(Results, 'progress', lambda *_: (1, 2))
  if beyond:
    _replace(monkeypatch, beyond, beyond=True)
  making.finish([items.ITEMS[chosen]], _place(tmp_path), [])
  text = (tmp_path / 'results.md').read_text()
  found = re.findall(r'^## .*\. (\w+)', text, re.MULTILINE)
  assert found == shown


@pytest.mark.parametrize(
  ('options', 'status'),
  [
    ({}, 'exploration'),
    ({'first_seed': 1000}, 'confirmation, by seeds from 1000 on'),
    ({'scale': 'paper'}, ''),
  ],
)
def test_a_page_says_whether_it_explores_or_confirms(
  done, tmp_path, options, status
):
  making.finish([items.ITEMS['speed']], _place(tmp_path, **options), [])
  text = (tmp_path / 'results.md').read_text()
  found = re.findall('^- status: (.*)', text, re.MULTILINE)
  assert [fact[: len(status)] for fact in found] == [status] * bool(status)


def test_all_failures_are_reported_after_the_pages_are_written(
  done, tmp_path, monkeypatch
):
  _replace(monkeypatch, 'speed', measure=_fail(RuntimeError('no device')))
  _replace(monkeypatch, 'runs', blocks=_fail(KeyError('model')))
  with pytest.raises(ValueError, match='not all') as caught:
    _main(tmp_path, _fail(ValueError('not all runs finished')))
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
def test_an_interruption_leaves_the_pages_unchanged(done, tmp_path, error):
  with pytest.raises(type(error)):
    _main(tmp_path, _fail(error))
  assert done == list(tmp_path.iterdir()) == []


def test_pages_are_drawn_by_one_process_at_a_time(done, tmp_path, monkeypatch):
  monkeypatch.setattr(making, 'WAIT', 0.3)
  with (
    state.lock(tmp_path, 'pages.lock'),
    pytest.raises(ValueError, match='another process that draws its pages'),
  ):
    _main(tmp_path, render=True)
  assert done == []
  # The launcher's lock does not keep another process from drawing.
  with state.lock(tmp_path):
    _main(tmp_path, render=True)
  assert done == ['drawn']

"""Guards: sections show what the work directories hold and what they lack."""

import json

import pandas as pd
import pytest
from etils import epath

from vit_jax import config as config_lib
from vit_jax.pages import drawing
from vit_jax.paper import items, rendering
from vit_jax.paper.claims import counts
from vit_jax.paper.design import Design
from vit_jax.paper.items.item import Item
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Claim, Section, Table
from vit_jax.paper.runs import Pretraining, seeds
from vit_jax.sweep import Sweep, reading
from vit_jax.sweep.commands import Folders

FEW_SHOT = 'few_shot/5shot/accuracy'
PAPER, MINI = Design('paper', 3), Design('mini', 3)
# A run of Table 8, of a curve of Figure 9, and of the claims of both.
SHARED = 'ViT-B_16,JFT-300M,7-epochs/run=pretraining'


@pytest.fixture
def where(tmp_path):
  return Folders(tmp_path, epath.Path(tmp_path))


@pytest.fixture(scope='module')
def sweep():
  return reading.load('configs/sweeps/reproduce.py:table8+figure9,seeds=3')


def _leave(where, sweep):
  """Writes the files of all runs of a sweep, as of finished runs."""
  config = config_lib.default()
  config.total_steps = 9
  config.evals.few_shot = config_lib.evaluation(
    'test', 'few_shot', train_split='train'
  )
  for study in sweep.studies:
    for run in study.all_runs():
      workdir = where.workdir(run.name)
      workdir.mkdir(parents=True)
      config_lib.save(config, workdir)
      rows = [{'step': step, FEW_SHOT: step / 10} for step in (4, 9)]
      text = '\n'.join(map(json.dumps, rows)) + '\n'
      (workdir / 'metrics.jsonl').write_text(text)
      (workdir / 'DONE').write_text('9\n')


def _rendered(where, sweep):
  """Renders Table 8 and Figure 9.

  Returns:
    Table 8's missing cells, the number of Figure 9's points by series, the
    answers to the claims of both, and the status of both items.
  """
  chosen = [items.ITEMS['table8'], items.ITEMS['figure9']]
  found, failures = rendering.sections(chosen, sweep, where, PAPER)
  assert failures == []
  [table] = [b for b in found[0].blocks if isinstance(b, Table)]
  answers = [
    block.answer
    for section in found
    for block in section.blocks
    if isinstance(block, Claim)
  ]
  rows = pd.read_csv(where.local / 'figures/figure9.csv')
  ours = rows[rows.source == 'ours'].groupby('series').size().to_dict()
  missing = {
    place
    for place in table.cells
    if page_parts.cell_text(table, *place).ours == 'missing'
  }
  words = [page_parts.status(section).word for section in found]
  return missing, ours, answers, words


def test_a_run_without_metrics_is_missing_everywhere(where, sweep):
  _leave(where, sweep)
  missing, points, answers, words = _rendered(where, sweep)
  curves = ('CLS-Token, lr=8e-4', 'GAP, lr=8e-4', 'GAP, lr=3e-4')
  assert missing == set()
  assert points == dict.fromkeys(curves, 2)
  assert answers == ['undecided'] * 3  # All runs are alike.
  assert words == ['complete', 'complete']
  (where.workdir(SHARED) / 'metrics.jsonl').unlink()
  missing, points, answers, words = _rendered(where, sweep)
  # The run is a seed of one cell only, that of the default embedding.
  assert len(missing) == 1
  assert points == dict.fromkeys(curves[1:], 2)
  assert answers == ['missing'] * 3
  assert words == ['partly there', 'partly there']


def test_the_numbers_of_claims_are_a_pilot_for_other_runs(where, sweep):
  _leave(where, sweep)
  names = {s.name: run.name for s in sweep.studies for run in s.all_runs()}
  token, high, low = items.ITEMS['figure9'].nodes
  for seed, start in enumerate(seeds(token, 3)):
    path = where.workdir(names[start.name]) / 'metrics.jsonl'
    last = {'step': 9, FEW_SHOT: seed / 10, 'goodput/steps_seconds': 90.0}
    path.write_text(json.dumps(last) + '\n')
  gone = where.workdir(names[seeds(high, 3)[2].name])
  (gone / 'metrics.jsonl').unlink()
  rendering.sections([items.ITEMS['figure9']], sweep, where, PAPER)
  pilot = counts.read(where.local / 'numbers.json')
  [values] = pilot.values.values()
  # A mean with a missing run is left out.
  assert values == {
    token.name: [0, pytest.approx(10), pytest.approx(20)],
    low.name: [pytest.approx(90)] * 3,
  }
  assert pilot.minutes == {names[start.name]: 1.5 for start in seeds(token, 3)}


def test_claims_about_weights_have_the_numbers_of_each_run(where, monkeypatch):
  start = Pretraining('ViT-L/16', 'JFT-300M', 14)
  names = [again.name for again in seeds(start, 3)]
  wanted = {}

  def measure(asked, results, folder):
    wanted.update({s.name: kinds for s, kinds in asked.items()})
    assert folder == where.local
    found = {
      name: {'distance_by_depth': 0.5 + place / 100}
      for place, name in enumerate(names)
    }
    return found, ['ViT-L/32: no weights']

  monkeypatch.setattr(rendering.weight_numbers, 'measure', measure)
  [found], failures = rendering.sections(
    [items.ITEMS['figure7']], Sweep([]), where, MINI
  )
  assert len(wanted) == 2 * 3
  for name in names:
    assert wanted[name] == {'distance_by_depth', 'far_head', 'near_head'}
  assert failures == ['ViT-L/32: no weights']
  assert [claim.answer for claim in found.blocks] == ['yes'] + ['missing'] * 5


@pytest.mark.parametrize(
  ('error', 'message'),
  [
    (ValueError('no\nfile'), 'could not be drawn: no file'),
    (KeyError('model'), "could not be drawn: KeyError: 'model'"),
  ],
)
def test_an_item_that_fails_leaves_the_others(where, error, message):
  def fail(results, pictures):
    raise error

  chosen = [
    Item('a', 'A', (), fail),
    Item('b', 'B', (), lambda *_: Section('b', 'B', notes=('here',))),
  ]
  found, failures = rendering.sections(chosen, Sweep([]), where, MINI)
  assert failures == [f'a: {message}']
  assert [(section.name, section.missing) for section in found] == [
    ('a', (message,)),
    ('b', ()),
  ]
  assert found[1].notes == ('here',)
  assert page_parts.status(found[0]).word == 'missing'


@pytest.mark.gate
def test_every_picture_has_the_mark_of_a_miniature(where, monkeypatch):
  marks, scale = [], 'mini'
  monkeypatch.setattr(drawing, 'save', lambda *_, mark='': marks.append(mark))
  every = '+'.join(items.ITEMS)
  sweep = reading.load(
    f'configs/sweeps/reproduce.py:{every},scale={scale},seeds=1'
  )
  rendering.sections([*items.ITEMS.values()], sweep, where, Design(scale, 1))
  # Figures 2, 3, 4, 5, 8, 9, 12 and 13, training_memory, norm_position and
  # translation.
  assert len(marks) == 11
  assert set(marks) == {'MINIATURE'}

"""Guards, for all items at all scales: they show finished runs of their own.

And their claims can be confirmed and denied.
"""

import dataclasses
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from etils import epath
from scipy import optimize

from tests import run_files
from tests.paper import made
from vit_jax import accounting
from vit_jax import config as config_lib
from vit_jax.configs import mini
from vit_jax.configs.sweeps import reproduce
from vit_jax.pages import drawing
from vit_jax.paper import cost, inside, items, plots
from vit_jax.paper.items.tables import table6
from vit_jax.paper.report import Picture, Table
from vit_jax.paper.runs import (
  SCALES,
  Pretraining,
  Results,
  Transfer,
  with_needs,
)

DATA = {'midi': ',data=folder:/photos'}
# Settings take seconds to read, and have tests of their own.
SHOWN = [item for item in items.ITEMS.values() if item.shown('paper')]
FROM_WEIGHTS = ('figure6', 'figure7', 'figure10', 'figure11', 'figure14')
METRICS = {
  **{'test/accuracy': 0.5, 'real/accuracy': 0.6, 'test/count': 100.0},
  **{'validation/accuracy': 0.4, 'validation/baseline_accuracy': 0.1},
  'train/accuracy': 0.7,
  **{made.FEW_SHOT: 0.3, made.PETS: 0.2},
}


@pytest.fixture(scope='module', params=SCALES)
def scale(request):
  return request.param


@pytest.fixture(scope='module')
def sweep(scale):
  every = '+'.join(items.ITEMS)
  more = DATA.get(scale, '')
  return reproduce.get_sweep(f'{every},scale={scale},seeds=2{more}')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """The work directory of a finished run, which stands for all."""
  found = tmp_path_factory.mktemp('run')
  config = mini.get_config('ViT-B/32,jft300m,epochs=7,few_shot=average')
  config.num_classes, config.model.dtype = 10, 'float32'
  rows = [{'step': step, **METRICS, 'validation/loss': 1.0} for step in (1, 2)]
  return epath.Path(run_files.leave(found, *rows, config=config))


@pytest.fixture
def rendered(scale, sweep, folder, tmp_path, monkeypatch):
  """Renders an item while the runs of some nodes are finished.

  Returns the table's cells and the rows of the picture's marks.
  """
  saved = {}
  monkeypatch.setattr(
    drawing, 'save', lambda figure, stem, rows, mark: saved.update({mark: rows})
  )
  monkeypatch.setattr(plots, 'draw', mock.MagicMock())  # Has its own tests.
  # So has reading weights, in a process of its own.
  monkeypatch.setattr(inside, 'draw', lambda *_: ([], ['no weights']))
  monkeypatch.setattr(cost, 'exaflops', lambda start: 1.0)
  config = config_lib.load(folder)
  several = {
    f'{name}/5shot/accuracy': 0.2
    for name, section in config['evals'].items()
    if section['kind'] == 'few_shot'
  }
  studies = {study.name: study for study in sweep.studies}

  def render(item, nodes):
    finished = {}
    for name in {node.name for node in with_needs(nodes)} & {*studies}:
      study = studies[name]
      for i, run in enumerate(study.candidates):
        finished[run.name] = {'held_out/accuracy': i / 10}
      winner = study.candidates[-1] if study.candidates else None
      for run in study.finals_of(winner):
        finished[run.name] = several | METRICS
    results = Results(
      sweep.studies, finished, scale=scale, workdir=lambda name: folder
    )
    counts = item.counts(scale, 2)
    claims = [mean for claim in item.asked(scale) for mean in claim.means()]
    measured = {}
    for mean in (*item.means(scale), *claims) if nodes else ():
      for start in mean.start.seeds(counts.get(mean.start, 1)):
        measured.setdefault(start.name, {})[mean.measure.inside] = 1.0
    saved.clear()
    section = item.render(
      dataclasses.replace(results, counts=counts, weights=measured),
      tmp_path / 'figures',
    )
    assert (section.name, section.title) == (item.name, item.title)
    assert {*saved} <= {results.mark}
    cells = {
      (block.title, *place): cell
      for block in section.blocks
      if isinstance(block, Table)
      for place, cell in block.cells.items()
    }
    pictures = [b for b in section.blocks if isinstance(b, Picture)]
    assert [p.stem for p in pictures] == [f'figures/{item.name}'] * len(saved)
    frame = saved.get(results.mark)
    ours = None if frame is None else frame[frame.source == 'ours']
    return section, cells, ours

  return render


@pytest.mark.parametrize('item', SHOWN, ids=lambda item: item.name)
def test_an_item_shows_the_runs_that_it_lists_and_no_others(
  item, scale, sweep, rendered
):
  nodes = item.nodes(scale, 2)
  if scale not in item.scales:
    assert nodes == []
    return
  every = [n for other in items.ITEMS.values() for n in other.nodes(scale, 2)]
  _, cells, ours = rendered(item, nodes)
  if item.name != 'objectnet':  # Its numbers are measured after the runs.
    for place, cell in cells.items():
      assert cell.ours or not cell.expected, place
  _, of_all, marks = rendered(item, every)
  assert of_all == cells
  assert (ours is None) == (marks is None) == (
    not item.name.startswith('figure')
  ) or item.name in FROM_WEIGHTS
  if ours is not None:
    pd.testing.assert_frame_equal(ours, marks)
    assert len(ours) > 1
  # Without runs, all of it is missing.
  section, cells, ours = rendered(item, [])
  for place, cell in cells.items():
    assert cell.ours is None or not cell.expected, place
  assert ours is None or ours.empty
  assert ours is not None or cells or section.missing


def test_all_runs_of_a_sweep_are_of_items(scale, sweep):
  names = [study.name for study in sweep.studies]
  assert len({*names}) == len(names)
  every = [n for item in items.ITEMS.values() for n in item.nodes(scale, 2)]
  assert {*names} <= {node.name for node in with_needs(every)}


# Claims. ----------------------------------------------------------------------

CLAIMS = {
  (scale, item.name, claim.key): claim
  for scale in SCALES
  for item in items.ITEMS.values()
  for claim in item.claims(scale)
}


def _numbers(claim, sign):
  """Returns a number for each mean, so that contrasts are above or below 0."""
  means = claim.means()
  rows = np.zeros((len(claim.contrasts), len(means)))
  for row, sum_ in zip(rows, claim.contrasts.values(), strict=True):
    for weight, mean in sum_.terms:
      if weight:
        row[means.index(mean)] = weight
  if sign < 0:
    rows = rows[:1]
  found = optimize.linprog(
    np.zeros(len(means)),
    A_ub=-sign * rows,
    b_ub=-np.ones(len(rows)),
    bounds=(-1000, 1000),
  )
  assert found.success, 'no numbers could give this answer'
  return dict(zip(means, map(float, found.x), strict=True))


@pytest.mark.parametrize('claim', CLAIMS.values(), ids=map('-'.join, CLAIMS))
def test_a_claim_can_be_confirmed_and_denied(claim):
  for sign, answer in ((1, 'yes'), (-1, 'no')):
    found = made.decided(claim, _numbers(claim, sign).get)
    assert found.answer == answer, found.evidence


def test_claims_have_runs_at_their_scale(scale, sweep):
  known = {study.name for study in sweep.studies}
  for (of_scale, *_), claim in CLAIMS.items():
    asked = not (scale == 'mini' and claim.not_in_miniature)
    for mean in claim.means() if of_scale == scale and asked else ():
      names = [node.name for node in mean.measure.nodes(mean.start)]
      there = [name for name in names if name in known]
      # Only some tasks of VTAB have a stand-in in miniature.
      assert there == names if scale == 'paper' else there, mean


def test_the_same_claims_are_asked_at_all_scales():
  keys = [[key for of, *key in CLAIMS if of == scale] for scale in SCALES]
  assert keys[0] == keys[1] == keys[2]


def test_claims_are_known_without_a_trace_of_a_model(monkeypatch):
  # A trace takes a second, and --list and --dry_run ask for all claims.
  monkeypatch.setattr(accounting, 'forward_macs', None)
  for scale in SCALES:
    assert [c for item in items.ITEMS.values() for c in item.claims(scale)]
  assert {*cost.MACS['mini']} == {s.model for s in table6.STARTS.values()}


# Which items there are. -------------------------------------------------------


def test_unknown_items_list_the_choices():
  with pytest.raises(ValueError, match=r'table66: no such item; .*table5'):
    items.find(['table5', 'table66'])
  found = items.find(['table8', 'table5'])
  assert [item.name for item in found] == ['table5', 'table8']
  papers = [item for item in items.ITEMS.values() if not item.beyond]
  assert items.find(['all']) == papers
  # Tables, figures, and what only the text says.
  assert len(papers) == 9 + 13 + 13


def test_a_pretraining_precedes_the_run_that_starts_from_it():
  transfer = Transfer(Pretraining('ViT-B/16'), 'CIFAR-10')
  assert with_needs([transfer, transfer]) == [transfer.pretraining, transfer]


@pytest.mark.parametrize('item', SHOWN, ids=lambda item: item.name)
def test_only_runs_of_claims_have_several_seeds(item):
  nodes = item.nodes('paper', 3)
  counts = item.counts('paper', 3)
  starts = {getattr(node, 'pretraining', node) for node in nodes}
  assert len({node.name for node in nodes}) == len(nodes)
  for first in (start for start in starts if not start.seed):
    seeds = [n for n in range(3) if first.seeds(3)[n] in starts]
    assert seeds == [*range(counts.get(first, 1))]

"""Guards: items drawn from weights have the right runs, panels and claims."""

import pytest

from tests.paper import made
from vit_jax.paper import items, pictures
from vit_jax.paper.design import Design
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Results, seeds

LARGE = Pretraining('ViT-L/16', values.JFT, 14)


class Stub(Results):
  """`Results` with the given folders and numbers."""

  def __init__(self, folders, found=(), **options):
    super().__init__([], {}, **options)
    self.folders, self.found = folders, dict(found)

  def folder(self, node):
    return self.folders.get(node)

  def number(self, nodes, metric, *, scale=100.0):
    found = [self.found.get((node, metric)) for node in nodes]
    if None in found:
      return None
    return Number(tuple(found), tuple(map(str, range(len(found)))))


def _names(item):
  return [node.name for node in item.nodes]


def test_figures_use_the_papers_runs():
  large = 'ViT-L/16, JFT-300M, 14 epochs'
  assert {
    name: _names(items.ITEMS[name])
    for name in ('figure6', 'figure7', 'figure10', 'figure11', 'figure14')
  } == {
    'figure6': [large],
    'figure7': ['ViT-L/32, JFT-300M, 7 epochs', large],
    'figure10': [
      'ViT-L/16, JFT-300M, 7 epochs, LR 2e-4, WD 0.01',
      'ViT-L/16, JFT-300M, 7 epochs',
      large,
    ],
    'figure11': [large, 'R50+ViT-L/16, JFT-300M, 14 epochs'],
    'figure14': [large],
  }
  assert dict(items.ITEMS['figure10'].nodes[0].options) == {
    'schedule.peak': 2e-4,
    'optimizer.weight_decay': 0.01,
  }
  # Table 6 contains all of these runs except the one with the lower learning
  # rate.
  others = {
    n for name in ('figure7', 'figure11') for n in items.ITEMS[name].nodes
  }
  others |= set(items.ITEMS['figure10'].nodes[1:])
  shared = {node.pretraining for node in items.ITEMS['table6'].nodes}
  assert others <= shared


def _fake_picture(monkeypatch, titles, notes=()):
  """Replaces `pictures.draw` by a fake that reports the panels `titles`.

  Returns the list of recorded calls.
  """
  calls = []

  def draw(name, panels, results, folder):
    calls.append((name, [(p.kind, p.title, p.images) for p in panels]))
    return pictures.Drawn(titles, notes, folder / f'{name}.csv')

  monkeypatch.setattr(pictures, 'draw', draw)
  return calls


# Item -> its claims -> the numbers that they need: kind, and a run of `_runs`.
INSIDE = {
  'figure7': {
    'distance_grows': [('distance_by_depth', 'large')],
    'some_look_far': [('far_head', 'large'), ('near_head', 'large')],
    'near_is_similar': [('position_locality', 'studied')],
    'lines': [('position_lines', 'studied')],
    'waves': [('position_waves', 'studied')],
    'filters': [('filter_share', 'studied')],
  },
  'figure10': {
    'rate_and_decay': [('position_waves', 'short'), ('position_waves', 'low')],
    'length': [('position_waves', 'long'), ('position_waves', 'short')],
  },
  'figure11': {
    'hybrid_looks_farther': [
      ('early_distance', 'hybrid'),
      ('early_distance', 'large'),
    ],
  },
}
# Numbers that agree with the claims are 1, except for these.
MORE = {
  ('position_waves', 'short'): 2.0,
  ('position_waves', 'long'): 3.0,
  ('early_distance', 'hybrid'): 2.0,
}


def _runs(scale):
  """Returns the runs that claims are about."""
  low, short, long = items.ITEMS['figure10'].shown_at(scale)
  studied, _ = items.ITEMS['figure7'].shown_at(scale)
  _, hybrid = items.ITEMS['figure11'].shown_at(scale)
  return {
    **{'large': LARGE, 'studied': studied, 'hybrid': hybrid},
    **{'low': low, 'short': short, 'long': long},
  }


def _answers(name, scale, sign=1, left_out=None):
  """Returns the answers to an item's claims from three seeds of each run.

  Args:
    name: of the item.
    scale: 'paper' or 'mini'.
    sign: -1 contradicts all claims.
    left_out: the (kind, run) of which one seed lacks the number.
  """
  runs, inside = _runs(scale), {}
  for kind, run in {of for need in INSIDE[name].values() for of in need}:
    for start in seeds(runs[run], 3):
      value = sign * MORE.get((kind, run), 1.0) + start.seed / 1000
      if start.seed < 2 or (kind, run) != left_out:
        inside.setdefault(start.name, {})[kind] = value
  item = items.ITEMS[name]
  counts = Design(scale, 3).counts(item)
  results = Results(
    [], {}, comparable=scale == 'paper', counts=counts, inside=inside
  )
  return made.answered(item, results)


@pytest.mark.parametrize('scale', ['paper', 'mini'])
@pytest.mark.parametrize('name', INSIDE)
def test_claims_follow_the_numbers_of_weights(name, scale):
  assert _answers(name, scale) == dict.fromkeys(INSIDE[name], 'yes')
  assert _answers(name, scale, -1) == dict.fromkeys(INSIDE[name], 'no')


@pytest.mark.parametrize('scale', ['paper', 'mini'])
@pytest.mark.parametrize('name', INSIDE)
def test_a_claim_is_missing_without_one_of_its_numbers(name, scale):
  for number in {of for need in INSIDE[name].values() for of in need}:
    found = _answers(name, scale, 1, number)
    assert {key for key in found if found[key] == 'missing'} == {
      key for key, need in INSIDE[name].items() if number in need
    }

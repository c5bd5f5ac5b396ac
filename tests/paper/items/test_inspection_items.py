"""Guards: items drawn from weights have the right runs, panels and claims."""

import subprocess
import sys

import pytest
from etils import epath

from tests.paper import made
from tests.tiny_run import eventful_config
from vit_jax.paper import items, pictures, report
from vit_jax.paper.design import Design
from vit_jax.paper.items import inspection_items, masked_patch_item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Results, seeds
from vit_jax.training import train

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


def test_positions_of_miniatures_begin_as_small_as_in_the_paper():
  studied, large = items.ITEMS['figure7'].shown_at('mini')
  assert large == LARGE
  low, short, long = items.ITEMS['figure10'].shown_at('mini')
  assert studied == short
  for node, epochs in ((low, 28), (short, 28), (long, 56)):
    options = dict(node.options)
    assert (node.model, node.epochs) == ('ViT-B/16', epochs)
    assert options.pop('model.position_stddev') == 0.02
    assert ('LR 4e-4, WD 0.01' in node.label) == bool(options)
  assert dict(low.options) == {
    'model.position_stddev': 0.02,
    # Half of the model's own rate, as in the paper.
    'schedule.peak': 4e-4,
    'optimizer.weight_decay': 0.01,
  }


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


@pytest.mark.parametrize(
  ('name', 'explained'), [('figure6', 0), ('figure7', 1), ('figure10', 1)]
)
def test_random_positions_in_miniature_are_explained(
  name, explained, monkeypatch, tmp_path
):
  _fake_picture(monkeypatch, ())
  assert not items.ITEMS[name].render(Stub({}), tmp_path).notes
  mini = Stub({}, comparable=False)
  assert len(items.ITEMS[name].render(mini, tmp_path).notes) == explained


def test_panels_are_those_of_the_paper(monkeypatch, tmp_path):
  calls = _fake_picture(monkeypatch, ())
  for item in (
    inspection_items.figure6(),
    inspection_items.figure7(),
    inspection_items.figure10(),
    inspection_items.figure11(),
    inspection_items.figure14(),
    masked_patch_item.masked_patch(),
  ):
    item.render(Stub({}), tmp_path)
  similarity = 'position_similarity'
  assert calls == [
    ('figure6', [('rollout', 'ViT-L/16', 6)]),
    (
      'figure7',
      [
        ('filters', 'ViT-L/32', 0),
        (similarity, 'ViT-L/32', 0),
        ('attention_distance', 'ViT-L/16', 128),
      ],
    ),
    (
      'figure10',
      [
        (similarity, 'ViT-L/16, JFT-300M, 7 epochs, LR 2e-4, WD 0.01', 0),
        (similarity, 'ViT-L/16, JFT-300M, 7 epochs', 0),
        (similarity, 'ViT-L/16, JFT-300M, 14 epochs', 0),
      ],
    ),
    (
      'figure11',
      [
        ('attention_distance', 'ViT-L/16', 128),
        ('attention_distance', 'R50+ViT-L/16', 128),
      ],
    ),
    ('figure14', [('rollout', 'ViT-L/16', 128)]),
    ('masked_patch', [('masked_patches', 'ViT-B/16', 4)]),
  ]


@pytest.mark.parametrize(
  ('comparable', 'length'), [(True, '14 epochs'), (False, '1,200 steps')]
)
def test_titles_of_figure10_are_what_the_run_had(
  monkeypatch, tmp_path, comparable, length
):
  (tmp_path / 'config.json').write_text(
    '{"total_steps": 1200, "schedule": {"peak": 0.0015},'
    ' "optimizer": {"weight_decay": 0.03}}'
  )
  calls = _fake_picture(monkeypatch, ())
  item = inspection_items.figure10()
  longest = item.shown_at('paper' if comparable else 'mini')[-1]
  results = Stub({longest: epath.Path(tmp_path)}, comparable=comparable)
  item.render(results, tmp_path)
  [(_, panels)] = calls
  assert panels[-1][1] == f'{length}, LR 0.0015, WD 0.03'


def test_a_section_has_no_picture_if_nothing_is_drawn(monkeypatch, tmp_path):
  _fake_picture(monkeypatch, ('ViT-L/16',), ('Missing: a run.',))
  section = inspection_items.figure6().render(Stub({}), tmp_path / 'figures')
  [picture] = section.blocks
  assert picture.stem == 'figures/figure6'
  assert section.missing == ('Missing: a run.',)
  _fake_picture(monkeypatch, ())
  assert not inspection_items.figure6().render(Stub({}), tmp_path).blocks


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


@pytest.mark.gate
def test_a_run_is_drawn_once(tmp_path, monkeypatch):
  config = eventful_config()
  config.total_steps = config.evals.test.every = 2
  config.accumulation_steps = 1
  config.schedule.warmup_steps = 0
  train.train_and_evaluate(config, tmp_path / 'run')
  results = Stub({LARGE: epath.Path(tmp_path / 'run')})
  figures = tmp_path / 'figures'
  section = inspection_items.figure6().render(results, figures)
  assert section.missing == ()
  assert [type(block) for block in section.blocks] == [report.Picture]
  assert sorted(path.name for path in figures.iterdir()) == [
    f'figure6.{end}' for end in ('csv', 'drawn.json', 'pdf', 'png')
  ]

  def fail(*args, **options):
    raise AssertionError('a process was started')

  monkeypatch.setattr(subprocess, 'run', fail)
  again = inspection_items.figure6().render(results, figures)
  assert again == section


@pytest.mark.gate
def test_items_do_not_import_the_drawing_code():
  """Drawing runs in another process, so this one initializes no JAX backend."""
  code = (
    'import sys; from vit_jax.paper import items;'
    "assert 'vit_jax.paper.pictures.weights_drawing' not in sys.modules"
  )
  subprocess.run([sys.executable, '-c', code], check=True)

"""Guards: items drawn from weights have the right runs, panels and claims."""

import subprocess
import sys

import pytest
from etils import epath

from tests.tiny_run import eventful_config
from vit_jax.paper import items, pictures, report
from vit_jax.paper.items import inspection_items, masked_patch_item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Results
from vit_jax.training import loop

LARGE = Pretraining('ViT-L/16', values.JFT, 14)


class Stub(Results):
  """`Results` with the given folders and numbers."""

  def __init__(self, folders, found=()):
    super().__init__([], {})
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


@pytest.mark.parametrize(
  ('name', 'explained'), [('figure6', 0), ('figure7', 1), ('figure10', 1)]
)
def test_random_positions_in_miniature_are_explained(
  name, explained, monkeypatch, tmp_path
):
  _fake_picture(monkeypatch, ())
  results = Stub({})
  assert not items.ITEMS[name].render(results, tmp_path).notes
  results.comparable = False
  assert len(items.ITEMS[name].render(results, tmp_path).notes) == explained


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
  results = Stub({LARGE: epath.Path(tmp_path)})
  results.comparable = comparable
  inspection_items.figure10().render(results, tmp_path)
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


def test_claims_ignore_a_csv_from_an_earlier_drawing(monkeypatch, tmp_path):
  rows = [
    'panel,part,block,head,value',
    'ViT-L/16,attention distance,0,0,5',
    'ViT-L/16,attention distance,0,1,15',
    'ViT-L/16,attention distance,1,0,15',
    'ViT-L/16,attention distance,1,1,15',
    'ViT-L/16,uniform attention,,,16',
    'ViT-L/16,uniform attention to the nearest half,,,10',
  ]
  (tmp_path / 'figure7.csv').write_text('\n'.join(rows))
  _fake_picture(monkeypatch, ('ViT-L/16', 'ViT-L/32'))
  _, depth, far = inspection_items.figure7().render(Stub({}), tmp_path).blocks
  assert far.answer == 'seen once'
  assert depth.answer == 'undecided'
  _fake_picture(monkeypatch, ('ViT-L/32',))
  _, *said = inspection_items.figure7().render(Stub({}), tmp_path).blocks
  assert [claim.answer for claim in said] == ['missing', 'missing']


def test_a_run_is_drawn_once(tmp_path, monkeypatch):
  config = eventful_config()
  config.total_steps = config.evals.test.every = 2
  config.accumulation_steps = 1
  config.schedule.warmup_steps = 0
  loop.train_and_evaluate(config, tmp_path / 'run')
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


def test_items_do_not_import_the_drawing_code():
  """Drawing runs in another process, so this one initializes no JAX backend."""
  code = (
    'import sys; from vit_jax.paper import items;'
    "assert 'vit_jax.paper.pictures.weights_drawing' not in sys.modules"
  )
  subprocess.run([sys.executable, '-c', code], check=True)

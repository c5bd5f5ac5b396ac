"""Guards: items of weights have the right runs, panels and numbers."""

import pytest

from tests.paper import made
from vit_jax.paper import inside, items
from vit_jax.paper.items.text.masked_patch import MASKED_PATCH
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K, JFT
from vit_jax.paper.runs import Results, Transfer

LARGE = 'ViT-L/16, JFT-300M, 14 epochs'
SHOWN = {
  'figure6': [LARGE],
  'figure7': ['ViT-L/32, JFT-300M, 7 epochs', LARGE],
  'figure10': [
    'ViT-L/16, JFT-300M, 7 epochs, LR 2e-4, WD 0.01',
    'ViT-L/16, JFT-300M, 7 epochs',
    LARGE,
  ],
  'figure11': [LARGE, 'R50+ViT-L/16, JFT-300M, 14 epochs'],
  'figure14': [LARGE],
}
PANELS = {
  'figure6': [('rollout', 6)],
  'figure7': [
    *(('filters', 0), ('position_similarity', 0), ('attention_distance', 128))
  ],
  'figure10': [('position_similarity', 0)] * 3,
  'figure11': [('attention_distance', 128)] * 2,
  'figure14': [('rollout', 128)],
}


@pytest.fixture
def drawn(monkeypatch):
  """Replaces the process that draws; collects the panels."""
  found = []

  def draw(name, panels, results, folder):
    found.extend(panels)
    return [panel.title for panel in panels][:1], ['one is missing']

  monkeypatch.setattr(inside, 'draw', draw)
  return found


@pytest.mark.parametrize('name', SHOWN)
def test_figures_use_the_papers_runs(name, drawn, tmp_path):
  item = items.ITEMS[name]
  assert [node.name for node in item.shown('paper')] == SHOWN[name]
  section = item.render(Results([], {}), tmp_path)
  assert [(p.kind, p.images) for p in drawn] == PANELS[name]
  assert {panel.node.name for panel in drawn} == {*SHOWN[name]}
  [picture] = section.blocks
  assert picture.stem == f'{tmp_path.name}/{name}'
  assert [*section.missing] == ['one is missing']
  # Table 6 has these runs, except the one with the lower rate.
  shared = {n.pretraining.name for n in items.ITEMS['table6'].shown('paper')}
  assert {*SHOWN[name]} - shared <= {SHOWN['figure10'][0]}


def test_a_note_tells_how_positions_of_miniatures_begin(drawn, tmp_path):
  for scale, noted in (('mini', True), ('paper', False)):
    results = Results([], {}, scale=scale)
    for name in ('figure7', 'figure10'):
      assert bool(items.ITEMS[name].render(results, tmp_path).notes) == noted
    assert not items.ITEMS['figure6'].render(results, tmp_path).notes


def test_masked_patches_are_compared_with_the_papers(drawn, tmp_path):
  of = {IMAGENET: 0.77, IMAGENET21K: 0.83, JFT: 0.84}

  def metrics(node, seed):
    if not isinstance(node, Transfer) or node.pretraining.data == IMAGENET21K:
      return None
    masked = node.pretraining.objective == 'masked_patch'
    return {'test/accuracy': 0.8 if masked else of[node.pretraining.data]}

  results = made.of_item(MASKED_PATCH, metrics)
  table, picture = MASKED_PATCH.render(results, tmp_path / 'f').blocks
  assert picture.stem == 'f/masked_patch'
  cells = {row: table.cells[row, 'ImageNet'] for row in table.rows}
  assert {
    row: (cell.paper.printed, cell.ours and round(cell.ours.mean, 9))
    for row, cell in cells.items()
  } == {
    'Masked patch prediction': ('79.9', 80),
    'From scratch': ('77.91', 77),
    'Supervised, ImageNet-21k': ('83.97', None),
    'Supervised, JFT-300M': ('84.15', 84),
  }


def test_each_run_is_compared_with_its_own_baseline():
  [claim] = [c for c in MASKED_PATCH.claims('paper') if c.key == 'predictable']
  [mean] = claim.means()

  def metrics(node, seed):
    baseline = 0.15 + 0.1 * node.seed
    return {
      'validation/accuracy': 2 * baseline + 0.01,
      'validation/baseline_accuracy': baseline,
    }

  starts = mean.start.seeds(3)
  results = made.results(starts, metrics, seeds=1)
  found = mean.measure.by_start(results, starts)
  # Each run is right 1 point more than twice as often as its baseline.
  assert found.values == pytest.approx((1, 1, 1))

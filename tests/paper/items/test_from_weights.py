"""Guards: items of weights have the right runs, panels and numbers."""

import pytest

from tests.paper import made
from vit_jax.pages import drawing
from vit_jax.paper import inside, items
from vit_jax.paper.items.text import masked_patch
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K, JFT
from vit_jax.paper.runs import Results, Transfer

LOWER_RATE = 'ViT-L/16, JFT-300M, 7 epochs, LR 2e-4, WD 0.01'
FIGURES = ('figure6', 'figure7', 'figure10', 'figure11', 'figure14')


@pytest.fixture
def drawn(monkeypatch):
  """Replaces the process that draws; collects the panels."""
  found = []

  def draw(name, panels, results, folder):
    found.extend(panels)
    return [panel.title for panel in panels][:1], ['one is missing']

  monkeypatch.setattr(inside, 'draw', draw)
  return found


@pytest.mark.parametrize('name', FIGURES)
def test_figures_draw_the_weights_of_table_6(name, drawn, tmp_path):
  item = items.ITEMS[name]
  section = item.render(Results([], {}), tmp_path)
  shown = {node.name for node in item.shown('paper')}
  assert {panel.node.name for panel in drawn} == shown
  [picture] = section.blocks
  assert picture.stem == f'{tmp_path.name}/{name}'
  assert [*section.missing] == ['one is missing']
  # Table 6 has these runs, except the one with the lower rate.
  shared = {n.pretraining.name for n in items.ITEMS['table6'].shown('paper')}
  assert shown - shared == {LOWER_RATE} & shown


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

  results = made.of_item(masked_patch.ITEM, metrics)
  table, picture = masked_patch.ITEM.render(results, tmp_path / 'f').blocks
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
  [claim] = [
    c for c in masked_patch.ITEM.claims('paper') if c.key == 'predictable'
  ]
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


def test_translation_draws_two_shifts_of_each_model(tmp_path, monkeypatch):
  rows = []
  monkeypatch.setattr(
    drawing, 'save', lambda figure, stem, found, mark: rows.append(found)
  )
  item = items.ITEMS['translation']
  columns = {
    **{'5-shot accuracy': 60, 'lost by 1/4 patch': 3},
    **{'changed by 1/8 patch': 8, 'changed by 1/4 patch': 20},
  }
  kinds = ('shift_accuracy', 'shift_loss', 'shift_eighth', 'shift_quarter')
  numbers = dict(zip(kinds, columns.values(), strict=True))
  results = made.of_item(item, lambda *_: None, count=2).knowing(
    {
      node.name: {kind: value + node.seed for kind, value in numbers.items()}
      for node in item.nodes('paper', 2)
    }
  )
  table = item.render(results, tmp_path).blocks[0]
  for (_, column), cell in table.cells.items():
    assert cell.ours.values == (columns[column], columns[column] + 1)
  marks = rows[0].set_index(['series', 'x'])['mean']
  assert len(marks) == 8
  assert marks['BiT-R50x1, 9M images', 0.25] == 20.5
  assert marks['ViT-B/32, all images', 0.125] == 8.5

"""Guards: answers to shifted images have Figure 4's runs and their numbers."""

import pytest

from tests.paper import made
from vit_jax.paper import items
from vit_jax.paper.design import SCALES, Design
from vit_jax.paper.items import translation_item

ITEM = items.ITEMS['translation']
# Changed answers in percent: ViT with 9M images and with all, ResNet likewise.
CHANGED = {(True, True): 40, (True, False): 15, (False, True): 20}
RESNET = {'paper': 'BiT-R50x1', 'mini': 'BiT-R50x2', 'midi': 'BiT-R50x1'}


def _inside(scale, sign=1):
  """Returns numbers; with sign=-1 they contradict all claims."""
  return {
    node.name: {
      'shift_quarter': 50
      + sign * (CHANGED.get((node.model == 'ViT-B/32', bool(node.images)), 12))
      + node.seed / 10,
      'shift_eighth': 8 + node.seed,
      'shift_accuracy': 60 + node.seed,
      'shift_loss': 3 + node.seed,
    }
    for node in Design(scale, 3).nodes(ITEM)
  }


def _results(scale, **options):
  inside = _inside(scale, **options)
  return made.of_item(ITEM, lambda *_: {}, scale=scale, inside=inside)


@pytest.mark.parametrize('scale', SCALES)
def test_it_needs_no_run_but_those_of_figure_4(scale):
  design = Design(scale, 3)
  nodes = {*design.nodes(ITEM)}
  assert nodes <= {*design.nodes(items.ITEMS['figure4'])}
  assert {(n.model, n.images) for n in nodes} == {
    (model, images)
    for model in ('ViT-B/32', RESNET[scale])
    for images in (9_000_000, None)
  }
  assert len(nodes) == 12


@pytest.mark.parametrize('scale', ['paper', 'mini'])
@pytest.mark.parametrize(('sign', 'answer'), [(1, 'yes'), (-1, 'no')])
def test_the_claims_follow_the_numbers(scale, sign, answer):
  found = made.answered(ITEM, _results(scale, sign=sign))
  assert found == dict.fromkeys(
    ('resnet_steadier_on_few', 'vit_learns_it', 'gap_shrinks'), answer
  )


@pytest.fixture
def drawn(monkeypatch):
  """Collects each figure and its rows, instead of writing its files."""
  kept = []
  monkeypatch.setattr(
    translation_item.drawing,
    'save',
    lambda figure, stem, rows, *, mark: kept.append((figure, rows)),
  )
  return kept


@pytest.mark.parametrize('scale', ['paper', 'mini'])
def test_the_table_and_the_chart_have_the_numbers(scale, tmp_path, drawn):
  section = ITEM.render(_results(scale), tmp_path)
  table, picture = section.blocks
  resnet = RESNET[scale]
  assert table.rows == [
    *('ViT-B/32, 9M images', 'ViT-B/32, all images'),
    *(f'{resnet}, 9M images', f'{resnet}, all images'),
  ]
  vit = {
    column: table.cells['ViT-B/32, 9M images', column].ours.values
    for column in table.columns
  }
  assert vit == {
    '5-shot accuracy': (60, 61, 62),
    'lost by 1/4 patch': (3, 4, 5),
    'changed by 1/8 patch': (8, 9, 10),
    'changed by 1/4 patch': pytest.approx((90, 90.1, 90.2)),
  }
  [(figure, rows)] = drawn
  ours = rows.set_index(['series', 'x'])['mean']
  assert len(ours) == 8
  assert ours[f'{resnet}, 9M images', 0.25] == pytest.approx(70.1)
  assert ours['ViT-B/32, all images', 0.125] == 9
  assert figure.axes[0].get_xlabel().startswith('Shift, in patches')
  assert picture.stem == f'{tmp_path.name}/translation'
  assert 'The claims are from the literature' in section.notes[0]
  assert any('shapes:shape+colour' in n for n in section.notes) == (
    scale == 'mini'
  )

"""Guards: the item on LayerNorm's place has the right runs and answers."""

import pandas as pd
import pytest

from tests.paper import fewshot, made
from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import items
from vit_jax.paper.items import scaling_item
from vit_jax.sweep import reading

ITEM = items.ITEMS['norm_position']
PETS = 'few_shot_pets/5shot/accuracy'


def _of(node):
  """Returns the number of blocks, and whether LayerNorm is last."""
  options = dict(node.options)
  return options['model.depth'], options.get('model.norm_position') == 'post'


def test_it_shares_runs_with_figure_8_and_is_beyond_the_paper():
  assert [_of(node) for node in ITEM.nodes] == [
    *((8, False), (64, False), (8, True), (64, True))
  ]
  assert {*ITEM.nodes[:2]} < {*scaling_item.figure8().nodes}
  assert ITEM not in items.find(['all'])


@pytest.mark.parametrize(
  ('scale', 'depths'), [('paper', (8, 64)), ('mini', (2, 5)), ('midi', (2, 16))]
)
def test_configs_differ_in_depth_and_place(scale, depths):
  data = ',data=folder:/photos' if scale == 'midi' else ''
  sweep = reproduce.get_sweep(f'norm_position,scale={scale},seeds=1{data}')
  runs = [run for study in sweep.studies for run in study.finals_of(None)]
  configs = [reading.read_config(run).model for run in runs]
  assert [(c.depth, c.norm_position) for c in configs] == [
    (depth, place) for place in (None, 'post') for depth in depths
  ]
  assert len({(c.name, c.width, c.heads) for c in configs}) == 1


# (blocks, whether LayerNorm is last) -> accuracy.
CLEAR = {(8, False): 0.5, (8, True): 0.49, (64, False): 0.6, (64, True): 0.3}
EVEN = {(8, False): 0.5, (8, True): 0.4, (64, False): 0.6, (64, True): 0.5}
REVERSE = {(8, False): 0.5, (8, True): 0.2, (64, False): 0.5, (64, True): 0.6}


@pytest.mark.parametrize(
  ('accuracy', 'scale', 'answers'),
  [
    (CLEAR, 'paper', ('yes', 'yes', 'yes')),
    (CLEAR, 'mini', ('yes', 'yes', 'yes')),
    (EVEN, 'paper', ('yes', 'undecided', 'no')),
    (REVERSE, 'paper', ('no', 'no', 'no')),
  ],
)
def test_claims_follow_the_numbers(tmp_path, accuracy, scale, answers):
  # At the paper's scale claims are about ImageNet, in miniature about the mean.
  def metrics(node):
    found = accuracy[_of(node)] + (node.seed - 1) / 1000
    if scale == 'paper':
      return {9: {fewshot.IMAGENET: found, PETS: 0.3}}
    return {9: {fewshot.IMAGENET: 0.3, PETS: 2 * found - 0.3}}

  results = fewshot.of_item(tmp_path, ITEM, metrics, scale=scale)
  keys = ('deep_needs_pre', 'matters_more_deep', 'shallow_close')
  assert made.answered(ITEM, results) == dict(zip(keys, answers, strict=True))
  (tmp_path / 'figures').mkdir()
  section = ITEM.render(results, tmp_path / 'figures')
  table, picture = section.blocks
  names = {False: 'LayerNorm first', True: 'LayerNorm last'}
  for (blocks, last), expected in accuracy.items():
    cell = table.cells[f'{blocks} blocks', names[last]]
    assert cell.ours.mean == pytest.approx(100 * expected)
    assert len(cell.ours.values) == 3
  rows = pd.read_csv(tmp_path / f'{picture.stem}.csv')
  assert dict(
    zip(zip(rows['x'], rows['series'], strict=True), rows['mean'], strict=True)
  ) == pytest.approx(
    {(blocks, names[last]): 100 * v for (blocks, last), v in accuracy.items()}
  )
  assert section.notes[0].startswith('The paper does not study')
  assert ('2 and 5' in section.notes[-1]) == (scale == 'mini')

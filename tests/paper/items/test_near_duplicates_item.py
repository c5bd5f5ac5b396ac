"""Guards: near-duplicates' item compares tests of the same runs."""

import pytest

from vit_jax.paper import items
from vit_jax.paper.page import page_parts
from vit_jax.paper.runs import Results
from vit_jax.sweep import Run, Study, reading

ITEM = items.ITEMS['near_duplicates']
SWEEP = 'configs/sweeps/reproduce.py'
CIFAR10 = 'JFT-300M: CIFAR-10'
ALL, CLEAN = 'All test images', 'Without near-duplicates'


def _results(with_list, metrics):
  """Returns results of the item's runs, of which some have a list."""
  studies, finished = [], {}
  for node in ITEM.nodes:
    config = 'configs/finetune.py:train=all'
    if with_list(node):
      config += ',clean=/a.json'
    runs = [Run(f'{node.name}/{i}', f'{config},M,D') for i in range(2)]
    studies.append(Study(node.name, finals=runs))
    for seed, run in enumerate(runs):
      finished[run.name] = metrics(node, seed)
  return Results(studies, finished)


def _metrics(node, seed):
  whole = 0.9 + 0.01 * seed
  found = {'test/accuracy': whole, 'test/count': 10_000}
  if node.task == 'CIFAR-10':
    found |= {'test_clean/accuracy': whole - 0.02, 'test_clean/count': 9_963}
  return found


def test_accuracies_with_and_without_and_how_many(tmp_path):
  results = _results(lambda node: node.task == 'CIFAR-10', _metrics)
  section = ITEM.render(results, tmp_path)
  accuracies, counts = section.blocks
  shown = {
    place: page_parts.cell_text(table, *place)
    for table in section.blocks
    for place in table.cells
  }
  assert shown[CIFAR10, ALL].ours.startswith('90.50 ')
  assert shown[CIFAR10, ALL].paper == '99.38'
  assert shown[CIFAR10, CLEAN].ours.startswith('88.50 ')
  # Of the same runs, so it does not vary.
  assert shown[CIFAR10, 'Difference'].ours == '\N{MINUS SIGN}2.00 ± 0.00'
  assert shown[CIFAR10, 'Left out'].ours.startswith('37 ')
  assert shown[CIFAR10, 'Of'].ours.startswith('10,000 ')
  assert shown['JFT-300M: ImageNet', CLEAN].ours == page_parts.DASH
  assert not section.missing
  assert page_parts.status(section).word == 'complete'
  assert accuracies.rows == counts.rows
  assert len(accuracies.rows) == 10
  assert not any('ReaL' in row for row in accuracies.rows)


@pytest.mark.parametrize('scale', ['mini', 'midi'])
def test_it_is_not_in_miniature(tmp_path, scale):
  assert ITEM.shown_at(scale) == ()
  assert ITEM.shown_at('paper') == ITEM.nodes
  results = Results([], {}, comparable=False, scale=scale)
  section = ITEM.render(results, tmp_path)
  assert not section.blocks
  assert section.missing[0].startswith('Not in miniature')
  data = ',data=folder:/photos' if scale == 'midi' else ''
  words = f'near_duplicates,scale={scale}{data}'
  assert not reading.load(f'{SWEEP}:{words}').studies

"""Guards: the cells of tables use the right runs and metrics."""

import pytest

from tests.paper import fewshot, made
from vit_jax.paper import claims, items, numbers
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Transfer

REAL = {
  'table2': [('ImageNet ReaL', column) for column in numbers.TABLE_2.columns],
  'table5': [
    (f'{data}: ImageNet ReaL', model)
    for data in (values.IMAGENET, values.IMAGENET21K, values.JFT)
    for model in numbers.TABLE_5.columns
  ],
  'table6': [(row, 'ImageNet ReaL') for row in numbers.TABLE_6.rows],
}


def _metrics(node, seed):
  """Returns accuracies; ReaL is higher, most so at Table 2's resolution."""
  larger = 0.01 * (getattr(node, 'resolution', 384) > 384)
  return {
    'test/accuracy': 0.8 + 0.1 * seed,
    'real/accuracy': 0.85 + 0.1 * seed + larger,
  }


@pytest.mark.parametrize(
  ('name', 'real'), [('table2', 91), ('table5', 90), ('table6', 90)]
)
def test_real_cells_use_the_imagenet_runs(name, real, tmp_path):
  item = items.ITEMS[name]
  results = made.results(item.nodes, _metrics)
  section = item.render(results, tmp_path)
  cells = section.blocks[0].cells
  ours = [cells[place] for place in REAL[name] if place in cells]
  ours = [cell for cell in ours if cell.ours]
  assert len(ours) == {'table2': 3, 'table5': 14, 'table6': 18}[name]
  for cell in ours:
    assert cell.expected
    assert cell.ours.mean == pytest.approx(real)
    assert cell.paper.value > 77
  others = {p for p in cells if p not in REAL[name] and cells[p].ours}
  assert {
    round(cells[place].ours.mean, 9)
    for place in others
    if place[1] != 'exaFLOPs'
  } == {85}
  assert not any('ReaL' in note for note in section.notes)
  # ReaL needs no separate runs.
  assert not any(
    node.task == values.REAL
    for node in item.nodes
    if isinstance(node, Transfer)
  )


@pytest.mark.parametrize('name', REAL)
def test_real_cells_are_not_expected_in_miniature(name, tmp_path):
  item = items.ITEMS[name]
  results = made.results(
    item.nodes, lambda node, seed: {'test/accuracy': 0.8}, comparable=False
  )
  section = item.render(results, tmp_path)
  cells = section.blocks[0].cells
  for place in REAL[name]:
    if place in cells:
      assert cells[place].ours is None
      assert not cells[place].expected
  assert sum('has no stand-in for it' in note for note in section.notes) == 1


def test_real_without_its_evaluation_is_missing(tmp_path):
  item = items.ITEMS['table6']
  results = made.results(item.nodes, lambda node, seed: {'test/accuracy': 0.8})
  cell = (
    item.render(results, tmp_path)
    .blocks[0]
    .cells['ViT-B/32, 7 epochs', 'ImageNet ReaL']
  )
  assert cell.expected
  assert cell.ours is None


def test_table_7_is_over_seeds_of_pretraining_and_of_fine_tuning(tmp_path):
  item = items.ITEMS['table7']
  assert {node.pretraining.seed for node in item.nodes} == {0, 1, 2}
  assert len(item.nodes) == 3 * 4 * 5
  again = Pretraining('BiT-R50x1', values.JFT, 7, 'sgd', seed=2)
  assert Transfer(again, values.FLOWERS) in item.nodes

  def metrics(node, seed):
    if not isinstance(node, Transfer):
      return {}
    adam = 0.2 * (node.pretraining.optimizer == 'adam')
    value = 0.5 + adam + 0.02 * node.pretraining.seed + 0.01 * seed
    return {'test/accuracy': value}

  results = made.results(item.nodes, metrics)
  table, claim = item.render(results, tmp_path).blocks
  for row in ('CIFAR-10', 'Average'):
    assert table.cells[row, 'BiT-R152x2, SGD'].ours.values == (
      pytest.approx((50, 51, 52, 53, 54, 55))
    )
  assert claim.answer == 'yes'
  # The pre-trainings have 50.5, 52.5 and 54.5, each a mean of two runs.
  assert (
    'BiT-R50x1: Adam 72.50 ± 2.00 (3 pre-trainings), SGD 52.50 ± 2.00 (3'
  ) in claim.evidence


def test_table_7_counts_each_pretraining_as_one_sample(tmp_path):
  item = items.ITEMS['table7']
  # Adam is ahead by 3 on average, but pre-trainings differ by up to 4.
  means = {'adam': (56, 54, 52), 'sgd': (53, 51, 49)}

  def metrics(node, seed):
    start = getattr(node, 'pretraining', node)
    mean = means[start.optimizer][start.seed] + 0.01 * seed
    return {'test/accuracy': mean / 100}

  results = made.results(item.nodes, metrics, seeds=3)
  table, claim = item.render(results, tmp_path).blocks
  adam, sgd = (
    table.cells['Average', f'BiT-R50x1, {optimizer}'].ours
    for optimizer in ('Adam', 'SGD')
  )
  # Nine values each would decide the claim.
  assert len(adam.values) == 9
  assert claims.compare(adam, sgd) == 'yes'
  assert claim.answer == claims.UNDECIDED


@pytest.mark.parametrize(
  ('scale', 'model', 'mean'),
  # In miniature a cell is the mean over all data sets.
  [('paper', 'ViT-B/16', 0.5), ('mini', 'ViT-B/32', 0.4)],
)
def test_table_8_uses_the_runs_of_its_scale(scale, model, mean, tmp_path):
  item = items.ITEMS['table8']
  accuracies = {fewshot.IMAGENET: 0.5, 'few_shot_pets/5shot/accuracy': 0.3}
  nothing = dict.fromkeys(accuracies, 0.0)
  runs = {
    node: {9: accuracies if node.model == model else nothing}
    for each in ('paper', 'mini')
    for node in item.nodes_at(each)
  }
  results = fewshot.results(tmp_path, runs, comparable=scale == 'paper')
  section = item.render(results, tmp_path)
  cells = section.blocks[0].cells
  assert [cell.ours.mean for cell in cells.values()] == pytest.approx(
    [mean] * 8
  )
  assert len(section.notes) == (scale == 'mini')


@pytest.mark.parametrize('name', ['table5', 'figure3'])
def test_notes_mention_validation_images_only_at_the_papers_scale(
  name, tmp_path
):
  item = items.ITEMS[name]
  for comparable in (True, False):
    results = made.results(item.nodes, _metrics, comparable=comparable)
    section = item.render(results, tmp_path)
    words = [*section.notes, getattr(section.blocks[0], 'caption', '')]
    assert comparable == any('pre-training has seen' in w for w in words)


@pytest.mark.parametrize(
  'name', ['table2', 'table5', 'table9', 'figure3', 'masked_patch']
)
def test_notes_state_the_image_count_of_imagenet21k(name, tmp_path):
  item = items.ITEMS[name]
  for comparable in (True, False):
    results = made.results(item.nodes, _metrics, comparable=comparable)
    section = item.render(results, tmp_path)
    words = [*section.notes, getattr(section.blocks[0], 'caption', '')]
    assert comparable == any('12.4 million images' in w for w in words)


def test_table_7_needs_all_seeds_of_pretraining(tmp_path):
  item = items.ITEMS['table7']
  gone = Transfer(Pretraining('BiT-R50x1', values.JFT, 7, seed=2), values.PETS)
  results = made.results(
    item.nodes,
    lambda node, seed: None if node == gone else {'test/accuracy': 0.5},
  )
  table, claim = item.render(results, tmp_path).blocks
  missing = [place for place, cell in table.cells.items() if not cell.ours]
  column = 'BiT-R50x1, Adam'
  assert missing == [('Oxford-IIIT Pets', column), ('Average', column)]
  assert claim.answer == 'missing'

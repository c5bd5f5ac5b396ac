"""Guards: the cells of tables use the right runs and metrics."""

import pytest

from tests.paper import fewshot, made
from vit_jax.paper import items, numbers
from vit_jax.paper.claims import decision
from vit_jax.paper.design import Design
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Transfer, Vtab

REAL = {
  'table2': [('ImageNet ReaL', column) for column in numbers.TABLE_2.columns],
  'table5': [
    (f'{data}: ImageNet ReaL', model)
    for data in (values.IMAGENET, values.IMAGENET21K, values.JFT)
    for model in numbers.TABLE_5.columns
  ],
  'table6': [(row, 'ImageNet ReaL') for row in numbers.TABLE_6.rows],
}
HARDER = (values.IMAGENET, values.CIFAR100)
PETS = 'few_shot_pets/5shot/accuracy'


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


def test_table_7_is_over_seeds_of_pretraining_and_of_fine_tuning(tmp_path):
  item = items.ITEMS['table7']
  nodes = Design('paper', 3).nodes(item)
  assert len(item.nodes) == 4 * 5
  assert len(nodes) == 3 * 4 * 5
  again = Pretraining('BiT-R50x1', values.JFT, 7, 'sgd', seed=2)
  assert Transfer(again, values.FLOWERS) in nodes

  def metrics(node, seed):
    if not isinstance(node, Transfer):
      return {}
    adam = 0.2 * (node.pretraining.optimizer == 'adam')
    value = 0.5 + adam + 0.02 * node.pretraining.seed + 0.01 * seed
    return {'test/accuracy': value}

  results = made.of_item(item, metrics)
  [table] = item.render(results, tmp_path).blocks
  for row in ('CIFAR-10', 'Average'):
    assert table.cells[row, 'BiT-R152x2, SGD'].ours.values == (
      pytest.approx((50, 51, 52, 53, 54, 55))
    )
  claim = made.said(item, results)['adam']
  assert claim.answer == 'yes'
  # The pre-trainings have 50.5, 52.5 and 54.5, each a mean of two runs.
  for start, mean in (('7 epochs', '72.50'), ('7 epochs, sgd', '52.50')):
    assert f'BiT-R50x1, JFT-300M, {start} {mean} ± 2.00 (3 pre-trainings)' in (
      claim.evidence
    )


def test_table_7_counts_each_pretraining_as_one_sample(tmp_path):
  item = items.ITEMS['table7']
  # Adam is ahead by 3 on average, but pre-trainings differ by up to 4.
  means = {'adam': (56, 54, 52), 'sgd': (53, 51, 49)}

  def metrics(node, seed):
    start = getattr(node, 'pretraining', node)
    mean = means[start.optimizer][start.seed] + 0.01 * seed
    return {'test/accuracy': mean / 100}

  results = made.of_item(item, metrics, seeds=3)
  [table] = item.render(results, tmp_path).blocks
  adam, sgd = (
    table.cells['Average', f'BiT-R50x1, {optimizer}'].ours
    for optimizer in ('Adam', 'SGD')
  )
  # Nine values each would decide the claim.
  assert len(adam.values) == len(sgd.values) == 9
  nine = [[*adam.values], [-value for value in sgd.values]]
  assert decision.outcome(nine).above < 0.05 / 2
  assert made.answered(item, results) == {'adam': 'undecided'}


@pytest.mark.parametrize(
  ('scale', 'model', 'mean'),
  # In miniature a cell is the mean over all data sets.
  [('paper', 'ViT-B/16', 0.5), ('mini', 'ViT-B/32', 0.4)],
)
def test_table_8_uses_the_runs_of_its_scale(scale, model, mean, tmp_path):
  item = items.ITEMS['table8']
  accuracies = {fewshot.IMAGENET: 0.5, PETS: 0.3}
  nothing = dict.fromkeys(accuracies, 0.0)
  runs = {
    node: {9: accuracies if node.model == model else nothing}
    for each in ('paper', 'mini')
    for node in Design(each, 3).nodes(item)
  }
  results = fewshot.results(
    tmp_path,
    runs,
    scale=scale,
    counts=Design(scale, 3).counts(item),
  )
  section = item.render(results, tmp_path)
  cells = section.blocks[0].cells
  assert [cell.ours.mean for cell in cells.values()] == pytest.approx(
    [mean] * 8
  )
  assert {len(cell.ours.values) for cell in cells.values()} == {3}
  assert len(section.notes) == (scale == 'mini')


def test_table_7_needs_all_seeds_of_pretraining(tmp_path):
  item = items.ITEMS['table7']
  gone = Transfer(Pretraining('BiT-R50x1', values.JFT, 7, seed=2), values.PETS)
  results = made.of_item(
    item, lambda node, seed: None if node == gone else {'test/accuracy': 0.5}
  )
  [table] = item.render(results, tmp_path).blocks
  missing = [place for place, cell in table.cells.items() if not cell.ours]
  column = 'BiT-R50x1, Adam'
  assert missing == [('Oxford-IIIT Pets', column), ('Average', column)]
  assert made.answered(item, results) == {'adam': 'missing'}


@pytest.mark.parametrize('scale', ['paper', 'mini'])
def test_the_claims_of_table_2_follow_the_numbers(scale):
  item = items.ITEMS['table2']
  ranks = {'BiT-R152x2': 0, 'ViT-L/16': 1, 'ViT-H/14': 2}

  def answers(sign, harder=1):
    """On harder tasks, ViT-H/14 is ahead by `harder`."""

    def metrics(node, seed):
      start = getattr(node, 'pretraining', node)
      rank = ranks[start.model]
      task = getattr(node, 'task', '')
      if rank == 2 and (task in HARDER or isinstance(node, Vtab)):
        rank = 1 + harder
      # Claims are about fine-tuning at 384 px.
      rank *= getattr(node, 'resolution', 384) == 384
      return {'test/accuracy': 0.5 + (sign * rank + start.seed / 20) / 10}

    return made.answered(item, made.of_item(item, metrics, scale=scale))

  assert answers(1) == {'ahead_of_resnet': 'yes', 'huge_is_best': 'yes'}
  assert answers(-1) == {'ahead_of_resnet': 'no', 'huge_is_best': 'no'}
  assert answers(1, -1) == {'ahead_of_resnet': 'yes', 'huge_is_best': 'no'}

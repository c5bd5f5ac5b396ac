"""Guards: items share runs and show only numbers that finished runs have."""

import itertools

import pytest

from tests.paper import made
from vit_jax.configs import pretrain
from vit_jax.paper import cost, items, numbers
from vit_jax.paper.design import Design
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Number, Table
from vit_jax.paper.runs import (
  Pretraining,
  Results,
  Transfer,
  Vtab,
  pretraining,
  with_needs,
)
from vit_jax.sweep import reading

SWEEP = 'configs/sweeps/reproduce.py'
DRAWN_FROM_WEIGHTS = ('figure6', 'figure7', 'figure10', 'figure11', 'figure14')


@pytest.fixture(scope='module', params=['mini', 'paper'])
def sweep(request):
  return reading.load(f'{SWEEP}:all,scale={request.param},seeds=3')


def _finished(sweep, accuracy):
  """Returns metrics of all runs, from accuracy(node's name, index of run)."""
  finished = {}
  for study in sweep.studies:
    for i, run in enumerate(study.candidates):
      finished[run.name] = {'held_out/accuracy': 0.1 * i}
    winner = study.candidates[-1] if study.candidates else None
    for i, run in enumerate(study.finals_of(winner)):
      value = accuracy(study.name, i)
      finished[run.name] = {
        'test/accuracy': value,
        'real/accuracy': value,
        'few_shot/5shot/accuracy': value,
      }
  return finished


def _is_papers_own(sweep):
  first = sweep.studies[0].finals_of(None)[0]
  return first.config.startswith('configs/pretrain.py')


def test_items_share_runs():
  shared = pretraining('ViT-L/16', values.JFT)
  assert shared.epochs == 14
  for name in ('table2', 'table5', 'table6'):
    assert Transfer(shared, values.CIFAR10) in items.ITEMS[name].nodes
  # Table 2 fine-tunes on ImageNet at a higher resolution and averages weights.
  assert Transfer(shared, values.IMAGENET, 512) in items.ITEMS['table2'].nodes
  assert Transfer(shared, values.IMAGENET) not in items.ITEMS['table2'].nodes
  seven = Pretraining('BiT-R50x1', values.JFT, 7)
  for name in ('table6', 'table7'):
    assert Transfer(seven, values.CIFAR10) in items.ITEMS[name].nodes
  default = Pretraining('ViT-B/16', values.JFT, 7)
  assert default in items.ITEMS['table8'].nodes
  assert Transfer(default, values.IMAGENET) in items.ITEMS['table6'].nodes
  design = Design('paper', 3)
  nodes = with_needs(
    node for item in items.find(['all']) for node in design.nodes(item)
  )
  assert len({node.name for node in nodes}) == len(nodes)
  seeds = [node.seed for node in nodes if isinstance(node, Pretraining)]
  # New first pre-trainings: Tables 2 and 5: 14, Table 6: 13, Table 7: 2, Table
  # 8: 7, Figure 3: two BiTs on two data sets, Figure 4: 19, Figure 8: 13,
  # Figure 9: 2, Figure 10: 1, Figure 13: 3, masked patches: 6,
  # regularization: 2.
  assert seeds.count(0) == 86
  # Of those, 60 are in claims.
  assert seeds.count(1) == seeds.count(2) == 60
  # 19 tasks for each of Table 9's three models and Figure 2's ResNet, and for
  # two more seeds of three of them.
  assert sum(isinstance(node, Vtab) for node in nodes) == 19 * (4 + 2 * 3)


def test_the_miniature_of_table_8_has_its_own_runs():
  table8, table5 = items.ITEMS['table8'], items.ITEMS['table5']
  mini, papers = (Design(scale, 3).nodes(table8) for scale in ('mini', 'paper'))
  assert {(node.model, node.epochs) for node in mini} == {('ViT-B/32', 14)}
  assert {(node.model, node.epochs) for node in papers} == {('ViT-B/16', 7)}
  assert len(mini) == len(papers) == 24
  assert table5.shown_at('mini') == table5.shown_at('paper') == table5.nodes
  sweep = reading.load(f'{SWEEP}:table8,scale=mini,seeds=3')
  assert [study.name for study in sweep.studies] == [n.name for n in mini]


def test_the_pretraining_precedes_the_run_that_starts_from_it():
  transfer = Transfer(Pretraining('ViT-B/16'), values.CIFAR10)
  assert with_needs([transfer, transfer]) == [transfer.pretraining, transfer]


def test_cells_are_means_over_the_reported_runs(sweep):
  start = pretraining('ViT-B/16', values.JFT)
  seeds = (0.5, 0.75, 0.625)
  results = Results(sweep.studies, _finished(sweep, lambda name, i: seeds[i]))
  number = results.transfer(start, values.CIFAR10)
  count = len(number.values)
  assert number.values == tuple(100 * seed for seed in seeds[:count])
  assert count == (3 if _is_papers_own(sweep) else 1)
  assert number.runs[-1].endswith(f'seed={count - 1}')
  assert results.few_shot([start], scale=1.0).values == (0.5,)


def test_a_deleted_result_affects_only_its_own_cells(tmp_path):
  sweep = reading.load(f'{SWEEP}:all,scale=paper,seeds=3')
  finished = _finished(sweep, lambda name, i: 0.5)
  gone = Transfer(pretraining('ViT-L/16', values.JFT), values.CIFAR10)
  [study] = [s for s in sweep.studies if s.name == gone.name]
  winner = study.candidates[-1] if study.candidates else None
  del finished[study.finals_of(winner)[0].name]['test/accuracy']
  results = Results(sweep.studies, finished)
  design = Design('paper', 3)
  missing = {
    (item.name, *place)
    for item in items.find(['table2', 'table5', 'table6', 'table7', 'table9'])
    for table in item.render(
      results.counting(design.counts(item), {}), tmp_path
    ).blocks
    if isinstance(table, Table)
    for place, cell in table.cells.items()
    if cell.expected and cell.ours is None
  }
  assert missing == {
    ('table2', 'CIFAR-10', 'ViT-L/16, JFT-300M'),
    ('table5', 'JFT-300M: CIFAR-10', 'ViT-L/16'),
    ('table6', 'ViT-L/16, 14 epochs', 'CIFAR-10'),
  }


@pytest.mark.gate
def test_without_runs_all_numbers_are_missing(tmp_path):
  sweep = reading.load(f'{SWEEP}:all,scale=mini,seeds=3')
  results = Results(sweep.studies, {})
  for item in items.find(['all']):
    name = item.name
    if not item.nodes:
      continue  # Its numbers come from the code.
    section = item.render(results, tmp_path)
    assert {*made.answered(item, results).values()} <= {'missing'}
    if name in DRAWN_FROM_WEIGHTS:
      assert not section.blocks
      assert section.notes or section.missing
      continue
    table, *_ = section.blocks
    if name.startswith('figure'):
      rows = (tmp_path / f'{name}.csv').read_text().splitlines()
      assert not any(row.startswith('ours') for row in rows)
      continue
    assert any(cell.expected for cell in table.cells.values())
    assert all(
      cell.ours is None for cell in table.cells.values() if cell.expected
    )


def test_averages_match_the_paper_if_accuracies_do(sweep, tmp_path):
  printed = numbers.TABLE_7
  columns = dict(zip(numbers.COLUMNS_7, printed.columns, strict=True))
  of_node = {}
  for (model, optimizer), column in columns.items():
    for seed, task in itertools.product(range(3), numbers.AVERAGE5):
      start = Pretraining(model, values.JFT, 7, optimizer.lower(), seed=seed)
      value = printed[task, column].value
      of_node[Transfer(start, task).name] = value / 100
  finished = _finished(sweep, lambda name, i: of_node.get(name, 0.0))
  item = items.ITEMS['table7']
  counts = Design('paper', 3).counts(item)
  results = Results(sweep.studies, finished, counts=counts)
  [table] = item.render(results, tmp_path).blocks
  assert made.answered(item, results) == {'adam': 'yes'}
  for column in printed.columns:
    cell = table.cells['Average', column]
    assert cell.ours.mean == pytest.approx(cell.paper.value, abs=0.0051)
    assert cell.ours.std == 0
    for task in numbers.AVERAGE5:
      assert table.cells[task, column].difference == pytest.approx(0, abs=1e-9)


def test_unknown_items_list_the_choices():
  with pytest.raises(ValueError, match=r'table66: no such item; .*table5'):
    items.find(['table5', 'table66'])
  assert [i.name for i in items.find(['table8', 'table5'])] == [
    'table5',
    'table8',
  ]
  papers = [item for item in items.ITEMS.values() if not item.beyond]
  assert items.find(['all']) == papers


def test_computed_exaflops_match_table_6():
  for row, (model, epochs) in zip(
    numbers.TABLE_6.rows, numbers.ROWS_6, strict=True
  ):
    if model in ('ViT-B/32', 'BiT-R50x1', 'R50+ViT-B/16'):
      printed = numbers.EXAFLOPS[row].value
      found = cost.exaflops(Pretraining(model, values.JFT, epochs))
      assert found == pytest.approx(printed, rel=0.025)


def test_costs_use_the_epochs_and_images_of_the_configs():
  assert cost.IMAGES == {
    values.IMAGENET: pretrain.IMAGENET_EXAMPLES,
    values.IMAGENET21K: pretrain.IMAGENET21K_EXAMPLES,
    values.JFT: pretrain.JFT_EXAMPLES,
  }
  assert {
    values.IMAGENET: pretrain.IMAGENET.epochs,
    values.IMAGENET21K: pretrain.IMAGENET21K.epochs,
    values.JFT: pretrain.JFT.epochs,
  } == cost.EPOCHS


def test_core_days_come_from_the_plan(sweep, tmp_path):
  long, medium = (
    pretraining(model, values.JFT).name for model in ('ViT-L/16', 'ViT-L/32')
  )
  results = Results(sweep.studies, {}, core_days={long: 697.0, medium: 180.5})
  section = items.ITEMS['table2'].render(results, tmp_path)
  row = {
    column: section.blocks[0].cells['TPUv3-core-days', column]
    for column in numbers.TABLE_2.columns
  }
  cell = row.pop('ViT-L/16, JFT-300M')
  assert cell.ours.values == (697,)
  assert cell.ours.runs == ('plan: ViT-L/16, JFT-300M, 14 epochs',)
  assert cell.difference == 17  # The paper has 680.
  assert all(other.ours is None for other in row.values())
  assert 'estimates of vit_jax.plan' in section.notes[-1]
  # Core-days need no run.
  assert not any(cell.expected for cell in (cell, *row.values()))
  # Our Table 6 has core-days too; the paper's does not.
  table = items.ITEMS['table6'].render(results, tmp_path).blocks[0]
  assert table.columns == (*numbers.TABLE_6.columns, 'TPUv3-core-days')
  assert {
    row: table.cells[row, column].ours.mean
    for row, column in table.cells
    if column == 'TPUv3-core-days'
  } == {'ViT-L/16, 14 epochs': 697, 'ViT-L/32, 7 epochs': 180.5}


def test_exaflops_are_counted_at_the_papers_own_scale(sweep, tmp_path):
  place = ('ViT-L/16, 14 epochs', 'exaFLOPs')
  results = Results(sweep.studies, {})
  section = items.ITEMS['table6'].render(results, tmp_path)
  cell = section.blocks[0].cells[place]
  assert cell.ours.mean == pytest.approx(1566.7, abs=0.05)
  assert cell.ours.runs == ('counted: ViT-L/16, JFT-300M, 14 epochs',)
  assert not cell.expected
  assert 'Our exaFLOPs are not measured' in section.notes[-1]
  results = Results(sweep.studies, {}, comparable=False)
  section = items.ITEMS['table6'].render(results, tmp_path)
  assert section.blocks[0].cells[place].ours is None
  assert not any('exaFLOPs' in note for note in section.notes)


def test_a_mean_of_no_values_is_an_error():
  with pytest.raises(ValueError, match='0 values of 0 runs'):
    Number((), ())

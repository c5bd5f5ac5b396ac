"""Guards the VTAB scores of Tables 2 and 9 and Figure 2.

The scores agree, and come from the right runs.
"""

import pandas as pd
import pytest

from tests.paper import made
from vit_jax.paper import items, numbers
from vit_jax.paper.design import Design
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Vtab, pretraining

STARTS = {
  column: pretraining(*of)
  for column, of in zip(numbers.TABLE_9.columns, numbers.COLUMNS_9, strict=True)
}
RESNET = Pretraining('BiT-R152x2', values.JFT, 14)
NODES = (*items.ITEMS['table9'].nodes, *items.ITEMS['figure2'].nodes)
FOUR = ('CIFAR-100', 'Pets', 'EuroSAT', 'dSpr-Ori')


def metrics(node, seed):
  """Returns the paper's accuracy; the ResNet gets half that of ViT-H/14."""
  if not isinstance(node, Vtab):
    return {}
  if node.pretraining == RESNET:
    value = numbers.TABLE_9[node.task, 'ViT-H/14, JFT-300M'].value / 2
  else:
    columns = {start: column for column, start in STARTS.items()}
    value = numbers.TABLE_9[node.task, columns[node.pretraining]].value
  return {'test/accuracy': value / 100}


@pytest.fixture(scope='module')
def full():
  return made.results(NODES, metrics)


@pytest.fixture(scope='module')
def mini():
  return made.results(
    NODES,
    metrics,
    left_out=[node for node in NODES if node.task not in FOUR],
    comparable=False,
  )


def test_runs_cover_19_tasks_three_vits_and_a_resnet():
  assert len(items.ITEMS['table9'].nodes) == 3 * 19
  assert Vtab(STARTS['ViT-L/16, ImageNet-21k'], 'DTD') in NODES
  assert STARTS['ViT-L/16, ImageNet-21k'].epochs is None
  assert STARTS['ViT-H/14, JFT-300M'].epochs == 14
  assert {node.pretraining for node in items.ITEMS['figure2'].nodes} == {
    *(STARTS['ViT-H/14, JFT-300M'], RESNET)
  }
  # Table 6 has the same ResNet.
  assert RESNET in [n.pretraining for n in items.ITEMS['table6'].nodes]


def test_table_9_means_match_the_paper_if_accuracies_do(full, tmp_path):
  section = items.ITEMS['table9'].render(full, tmp_path)
  [table] = section.blocks
  means = [table.cells['Mean', column].ours.mean for column in table.columns]
  assert means == pytest.approx([77.63, 76.29, 72.71], abs=0.0051)
  assert table.rows[0] == 'Caltech101'
  assert table.rows[-1] == 'Mean'
  assert len(table.cells) == 20 * 3
  for place, cell in table.cells.items():
    assert cell.expected
    assert cell.difference == pytest.approx(0, abs=0.051), place
  assert table.cells['DMLab', 'ViT-H/14, JFT-300M'].ours.mean == (
    pytest.approx(53.1)
  )
  [note] = section.notes
  assert '12.4 million images' in note


def test_table_2_has_the_vtab_score(full, mini, tmp_path):
  section = items.ITEMS['table2'].render(full, tmp_path)
  table = section.blocks[0]
  row = {
    column: table.cells['VTAB', column]
    for column in table.columns
    if ('VTAB', column) in table.cells
  }
  bit = row.pop('BiT-R152x4, JFT-300M')
  assert bit.ours is None
  assert not bit.expected
  assert bit.paper.value == 76.29
  assert [cell.ours.mean for cell in row.values()] == pytest.approx(
    [77.63, 76.29, 72.71], abs=0.0051
  )
  assert all(cell.expected for cell in row.values())
  [note, _] = section.notes
  assert '12.4 million images' in note
  section = items.ITEMS['table2'].render(mini, tmp_path)
  cell = section.blocks[0].cells['VTAB', 'ViT-L/16, ImageNet-21k']
  assert cell.ours.mean == pytest.approx(84.325)
  assert any('over 4 of the 19 tasks' in note for note in section.notes)


def test_figure_2_shows_our_groups_and_the_papers(full, tmp_path):
  section = items.ITEMS['figure2'].render(full, tmp_path)
  rows = pd.read_csv(tmp_path / 'figure2.csv')
  ours = rows[rows.source == 'ours'].set_index(['series', 'panel'])['mean']
  vit = ours['ViT-H/14, JFT-300M']
  assert dict(vit) == pytest.approx(
    {
      **{'VTAB (19 tasks)': 77.63, 'Natural': 86.69},
      **{'Specialized': 87.00, 'Structured': 65.03},
    },
    abs=0.0051,
  )
  resnet = ours['BiT-R152x2, JFT-300M']
  assert resnet['Natural'] == pytest.approx(vit['Natural'] / 2)
  assert (rows.source == 'paper').sum() == 10
  assert section.notes == []


@pytest.mark.parametrize('scale', ['paper', 'mini'])
def test_the_claims_of_figure_2_follow_the_numbers(scale):
  item = items.ITEMS['figure2']
  # The tasks of FOUR have a miniature; 'EuroSAT' is a specialized one.
  specialized = ('Camelyon', 'EuroSAT', 'Resisc45', 'Retinopathy')

  def answers(lead, on_specialized):
    def accuracy(node, seed):
      if not isinstance(node, Vtab):
        return {}
      more = on_specialized if node.task in specialized else lead
      more *= node.pretraining.model == 'ViT-H/14'
      return {'test/accuracy': 0.5 + more + node.pretraining.seed / 100}

    results = made.of_item(
      item,
      accuracy,
      scale=scale,
      left_out=[
        node
        for node in Design(scale, 3).nodes(item)
        if scale == 'mini' and node.task not in FOUR
      ],
    )
    return made.answered(item, results)

  assert answers(0.2, 0.0) == {'groups': 'yes', 'specialized': 'yes'}
  assert answers(0.2, 0.4) == {'groups': 'yes', 'specialized': 'no'}
  assert answers(-0.2, 0.0) == {'groups': 'no', 'specialized': 'no'}

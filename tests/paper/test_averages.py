"""Guards: averages are taken per seed, and only if no run is missing."""

import pytest

from tests.paper import made
from vit_jax.paper import averages, numbers
from vit_jax.paper.numbers import means, values
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Transfer, Vtab

START = Pretraining('ViT-B/16')
OTHER = Pretraining('ViT-B/16', seed=1)
NODES = averages.vtab_nodes(START)


def number(*found):
  return Number(found, tuple(f'run {value:g}' for value in found))


def test_a_mean_across_data_sets_has_a_value_for_each_seed():
  found = averages.across([number(1.0, 2.0), number(3.0, 6.0)])
  assert found.values == (2.0, 4.0)
  assert found.runs == ('run 1 + run 3', 'run 2 + run 6')


def test_a_mean_across_data_sets_needs_all_with_equal_numbers_of_seeds():
  assert averages.across([number(1.0), None]) is None
  assert averages.across([number(1.0), number(1.0, 2.0)]) is None
  assert averages.across([]) is None


def test_a_pretraining_counts_as_one_value_and_names_its_runs():
  one = Number((70.0, 72.0), ('a', 'b'))
  found = averages.by_pretraining([one, Number((80.0,), ('c',))])
  assert found.values == (71, 80)
  assert found.runs == ('a + b', 'c')
  # A single pre-training has no spread, however often it is fine-tuned.
  assert averages.by_pretraining([one]).std is None
  assert averages.by_pretraining([one, None]) is None
  assert averages.by_pretraining([]) is None


def test_transfers_have_a_value_for_each_pretraining():
  tasks = means.AVERAGE5
  nodes = [Transfer(start, task) for start in (START, OTHER) for task in tasks]

  def metrics(node, seed):
    start = getattr(node, 'pretraining', node)
    more = 0.05 * (getattr(node, 'task', '') == values.PETS)
    return {'test/accuracy': 0.5 + 0.1 * start.seed + 0.2 * seed + more}

  results = made.results(nodes, metrics)
  starts = (START, OTHER)
  found = averages.transfers(results, starts, values.PETS)
  assert found.values == pytest.approx((65, 75))
  found = averages.average5_transfers(results, starts)
  assert found.values == pytest.approx((61, 71))
  gone = [*starts, Pretraining('ViT-B/16', seed=2)]
  assert averages.average5_transfers(results, gone) is None
  assert averages.transfers(results, gone, values.PETS) is None


def test_average5_needs_all_tasks():
  nodes = [Transfer(START, task) for task in means.AVERAGE5]
  results = made.results(
    nodes,
    lambda node, seed: (
      None if node == nodes[3] and seed else {'test/accuracy': 0.5}
    ),
  )
  assert averages.average5(results, START) is None


def test_vtab_means_follow_from_table_9():
  column = numbers.TABLE_9.column('ViT-H/14, JFT-300M')
  results = made.results(
    NODES,
    lambda node, seed: (
      {'test/accuracy': column[node.task] / 100 + 0.01 * seed}
      if isinstance(node, Vtab)
      else {}
    ),
  )
  found = averages.vtab(results, START)
  expected = {
    **{'natural': 86.69, 'specialized': 87.00},
    **{'structured': 65.03, 'mean': 77.63},
  }
  assert {name: n.values[0] for name, n in found.items()} == pytest.approx(
    expected, abs=0.0051
  )
  for name, of_paper in means.vtab_means(column).items():
    assert found[name].values == pytest.approx((of_paper, of_paper + 1))
  assert averages.vtab_notes(results, [START]) == []


def test_vtab_means_in_miniature_cover_the_tasks_with_a_stand_in():
  there = {'CIFAR-100': 0.25, 'Pets': 0.5, 'EuroSAT': 0.9}
  results = made.results(
    NODES,
    lambda node, seed: {'test/accuracy': there.get(getattr(node, 'task', ''))},
    left_out=[node for node in NODES if node.task not in there],
    comparable=False,
  )
  found = averages.vtab(results, START)
  assert found['natural'].mean == 37.5
  assert found['specialized'].mean == 90
  assert found['structured'] is None
  # The mean is over the tasks, not over the groups.
  assert found['mean'].mean == pytest.approx(55)
  assert averages.vtab_notes(results, [START, START]) == [
    'Our VTAB means are over 3 of the 19 tasks. Only these tasks have data in'
    ' miniature: 2 of 7 Natural tasks, 1 of 4 Specialized tasks, 0 of 8'
    ' Structured tasks.'
  ]


@pytest.mark.parametrize('comparable', [True, False])
def test_a_missing_task_result_removes_the_means_that_include_it(comparable):
  results = made.results(
    NODES,
    lambda node, seed: (
      None if node == Vtab(START, 'DMLab') and seed else {'test/accuracy': 0.5}
    ),
    comparable=comparable,
  )
  found = averages.vtab(results, START)
  assert found['structured'] is found['mean'] is None
  assert found['natural'].values == found['specialized'].values == (50, 50)

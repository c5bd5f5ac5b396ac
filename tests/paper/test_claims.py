"""Guards: a measure has a value for each pre-training, and needs all runs."""

import pytest

from tests.paper import made
from tests.paper.made import number
from vit_jax.paper import claims, numbers
from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Results, Transfer, Vtab, vtab_nodes

START = Pretraining('ViT-B/16')
OTHER = Pretraining('ViT-B/16', seed=1)
NODES = vtab_nodes(START)
GROUPS = ('natural', 'specialized', 'structured', 'mean')


def _vtab(results):
  return {g: claims.vtab(g).number(results, [START]) for g in GROUPS}


def test_a_mean_across_data_sets_has_a_value_for_each_seed():
  one, other = number(1.0, 2.0), Number((3.0, 6.0), ('a', 'b'))
  found = claims.across([one, other])
  assert found.values == (2.0, 4.0)
  assert found.runs == ('run0 + a', 'run1 + b')
  # Several metrics of a run are of one run.
  assert claims.across([one, one]).runs == ('run0', 'run1')
  # It needs all data sets.
  assert claims.across([number(1.0), None]) is None
  assert claims.across([]) is None


def test_a_pretraining_counts_as_one_value_and_names_its_runs():
  nodes = [Transfer(start, numbers.PETS) for start in (START, OTHER)]
  results = made.results(
    nodes,
    lambda node, seed: {
      'test/accuracy': 0.7 + 0.1 * seed + 0.05 * getattr(node, 'seed', 0)
    },
  )
  measure = claims.tuned(numbers.PETS)
  found = measure.by_start(results, [START, OTHER])
  assert found.values == pytest.approx((75, 75))
  assert found.runs[0].count('seed=') == 2
  assert len(measure.number(results, [START, OTHER]).values) == 4
  # A single pre-training has no spread, however often it is fine-tuned.
  assert measure.by_start(results, [START]).std is None
  gone = Pretraining('ViT-B/16', seed=2)
  for several in ([START, gone], []):
    assert measure.by_start(results, several) is None


def test_average5_needs_all_tasks():
  nodes = claims.AVERAGE5.nodes(START)
  assert [node.task for node in nodes] == [*numbers.AVERAGE5]
  for left_out, mean in ((None, 30), (nodes[3], None)):
    results = made.results(
      nodes,
      lambda node, seed, gone=left_out: (
        None
        if node == gone
        else {'test/accuracy': 0.1 * nodes.index(node) + 0.1}
        if node in nodes
        else {}
      ),
    )
    found = claims.AVERAGE5.number(results, [START])
    assert (found and found.mean) == (mean and pytest.approx(mean))


def test_vtab_means_in_miniature_cover_the_tasks_with_a_stand_in():
  there = {'CIFAR-100': 0.25, 'Pets': 0.5, 'EuroSAT': 0.9}
  results = made.results(
    NODES,
    lambda node, seed: {'test/accuracy': there.get(getattr(node, 'task', ''))},
    left_out=[node for node in NODES if node.task not in there],
    scale='mini',
  )
  found = _vtab(results)
  assert found['natural'].mean == 37.5
  assert found['specialized'].mean == 90
  assert found['structured'] is None
  # The mean is over the tasks, not over the groups.
  assert found['mean'].mean == pytest.approx(55)


@pytest.mark.parametrize('scale', ['paper', 'mini'])
def test_a_missing_task_result_removes_the_means_that_include_it(scale):
  results = made.results(
    NODES,
    lambda node, seed: (
      None if node == Vtab(START, 'DMLab') and seed else {'test/accuracy': 0.5}
    ),
    scale=scale,
  )
  found = _vtab(results)
  assert found['structured'] is found['mean'] is None
  assert found['natural'].values == found['specialized'].values == (50, 50)


def test_numbers_from_weights_need_all_seeds():
  measure = NUMBERS['far_head']
  known = Results([], {}, weights={START.name: {'far_head': 2.5}})
  assert measure.number(known, [START]) == Number((2.5,), (START.name,))
  assert measure.number(known, [START, OTHER]) is None


def test_sums_add_their_weights():
  one, other = (claims.FIVE_SHOT(start) for start in (START, OTHER))
  found = 2.0 * one - 0.5 * (one + other)
  assert {m.start: w for w, m in found.terms} == {START: 1.5, OTHER: -0.5}
  average = claims.average([one, one, other])
  assert {m.start: w for w, m in average.terms} == {
    START: pytest.approx(2 / 3),
    OTHER: pytest.approx(1 / 3),
  }
  # A mean that cancels out is not needed.
  nothing = Claim('a', 'A', {'t': one + other - one})
  assert [mean.start for mean in nothing.means()] == [OTHER]


def test_a_mean_is_expected_where_it_has_runs():
  real = claims.tuned(numbers.IMAGENET, metric='real/accuracy')
  for measure, in_mini in (
    (claims.tuned(numbers.IMAGENET), True),
    (real, False),
  ):
    mean = measure(START)
    for scale, expected in (('paper', True), ('mini', in_mini)):
      results = made.results(measure.nodes(START), lambda *_: None, scale=scale)
      assert mean.expected(results) == expected
      assert not mean.expected(Results([], {}, scale=scale))

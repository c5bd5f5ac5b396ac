"""Guards: --list and --plan tell what it takes to decide a claim."""

import pytest

from vit_jax.paper import items
from vit_jax.paper.claims.counts import Pilot
from vit_jax.paper.claims.measures import AVERAGE5
from vit_jax.paper.cost import claim_table
from vit_jax.paper.design import Design
from vit_jax.sweep import Sweep, reading

ADAM = items.ITEMS['table7']
STARTS = [start for claim in ADAM.claims('mini') for start in claim.starts()]
# Adam leads by 10 points; each spread is 1.
VALUES = {
  AVERAGE5.name: {
    start.name: [mean - 1.0, mean, mean + 1.0]
    for start in STARTS
    for mean in (70.0 if start.optimizer == 'adam' else 60.0,)
  }
}


@pytest.fixture(scope='module')
def sweep():
  return reading.load('configs/sweeps/reproduce.py:table7,scale=mini,seeds=3')


def _minutes(sweep):
  """Returns 4 minutes for each pre-training and 1 for each fine-tuning."""
  return {
    run.name: 4.0 if run.name.endswith('run=pretraining') else 1.0
    for study in sweep.studies
    if 'seed 1' not in study.name and 'seed 2' not in study.name
    for run in study.finals_of(None)
  }


def _plan(design, sweep, core_days=(), item=ADAM):
  return claim_table.plan([item], design, sweep, dict(core_days)).splitlines()


def test_a_plan_has_the_runs_power_and_cost_of_each_claim(sweep):
  design = Design('mini', 3, Pilot(VALUES, _minutes(sweep)))
  head, statement, *details = _plan(design, sweep)
  assert head.startswith('Claims, with --seeds=3. Answers are right with 95%')
  assert statement.startswith('table7.adam: ResNets that were pre-trained')
  assert details == [
    '  4 x 3 pre-trainings + 60 fine-tuning runs. Power 100%.',
    '  lead of Adam for BiT-R50x1: pilot +10; spreads 1.1, 1.1; decided from'
    ' 3.8 on',
    '  lead of Adam for BiT-R152x2: pilot +10; spreads 1.1, 1.1; decided from'
    ' 3.8 on',
    # 12 pre-trainings and 60 fine-tunings, also of seeds without a pilot.
    '  Cost: 108 minutes of one device.',
  ]


def test_a_plan_of_the_papers_runs_has_exaflops_and_core_days():
  design = Design('paper', 3)
  days = {STARTS[0].name: 1000.0, STARTS[1].name: 400.5}
  # Table 6 has 50 and 563 exaFLOPs for these models.
  cost = 'Cost of the pre-trainings: 3,652 exaFLOPs'
  papers = reading.load('configs/sweeps/reproduce.py:table7,seeds=3')
  assert _plan(design, papers)[-1] == f'  {cost}.'
  assert _plan(design, papers, days)[-1] == (
    f'  {cost}, 1,400 TPUv3-core-days for 2 of them.'
  )


def test_items_without_claims_have_no_plan_and_no_line():
  table5 = items.ITEMS['table5']
  assert _plan(Design('mini', 3), Sweep([]), item=table5) == ['No claims.']
  assert claim_table.short(table5, Design('mini', 3)) == []

"""Guards: --plan prints the costs, the states of runs, and totals."""

import json

import pytest
from etils import epath

from vit_jax.paper import items
from vit_jax.paper.cost import plan_table, planning
from vit_jax.paper.cost.plan_table import Row
from vit_jax.paper.design import Design
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Transfer, with_needs
from vit_jax.plan import analysis
from vit_jax.sweep import reading
from vit_jax.sweep.commands import Folders

LONG = Pretraining('ViT-L/16', values.JFT, 14)
SHORT = Pretraining('ViT-L/32', values.JFT, 7)
NODES = with_needs(
  [Transfer(LONG, values.CIFAR10), Transfer(SHORT, values.CIFAR10)]
)


@pytest.fixture(scope='module')
def paper():
  return reading.load('configs/sweeps/reproduce.py:table6,scale=paper')


@pytest.fixture(scope='module')
def mini():
  return reading.load('configs/sweeps/reproduce.py:table6,scale=mini')


@pytest.fixture
def where(tmp_path):
  return Folders(tmp_path, epath.Path(tmp_path))


def _leave(where, name, lines, *, done=False):
  """Writes the files of a run of 2,000 steps."""
  workdir = where.workdir(name)
  workdir.mkdir(parents=True)
  (workdir / 'config.json').write_text('{"total_steps": 2000}')
  (workdir / 'metrics.jsonl').write_text(lines)
  if done:
    (workdir / 'DONE').write_text('2000\n')


def test_costs_and_states_of_runs_at_the_papers_scale(paper, where):
  found = planning.pretraining_runs(NODES, paper)
  _leave(where, found[LONG.name].name, '{"step": 1200}\n{"step": 1300, "los')
  rows = plan_table.rows(
    NODES, paper, where, {}, {SHORT.name: 181.0}, papers_own=True
  )
  assert [(row.name, row.steps, row.paper, row.state) for row in rows] == [
    # 14 epochs of 303 million images in batches of 4096.
    (LONG.name, 1_035_644, '0.68k', 'step 1,200'),
    (SHORT.name, 517_822, '', 'not begun'),
  ]
  assert [row.core_days for row in rows] == [None, 181]
  assert [row.hours for row in rows] == [None, None]
  assert rows[0].compute == pytest.approx(1566.7, abs=0.05)


@pytest.mark.parametrize(
  ('node', 'steps'),
  [
    (Pretraining('ViT-L/16', values.IMAGENET21K), 272_460),  # 90 epochs.
    (Pretraining('BiT-R50x1', values.JFT, 7, 'sgd'), 517_822),
  ],
)
def test_steps_come_from_the_configs(node, steps, where):
  sweep = reading.load('configs/sweeps/reproduce.py:all,scale=paper')
  [row] = plan_table.rows([node], sweep, where, {}, {}, papers_own=True)
  assert row.steps == steps


def test_a_table_has_totals_and_no_empty_columns():
  text = plan_table.table(
    [
      Row('one', 1000.5, 2000, None, '', None, 'not begun'),
      Row('another', 2.0, 30, 1728.66, '2.5k', None, 'finished'),
    ],
    'exaFLOPs',
  )
  assert text.splitlines() == [
    "Pre-training  exaFLOPs  Steps  Core-days  Paper's  State",
    'one            1,000.5  2,000          —        —  not begun',
    'another            2.0     30    1,728.7     2.5k  finished',
    '-------------------------------------------------------------',
    '2 runs         1,002.5  2,030    1,728.7        —  1 finished',
  ]


def test_a_miniature_has_compute_and_the_hours_that_are_left(mini, where):
  found = planning.pretraining_runs(NODES, mini)
  last = {
    'step': 2000,
    'goodput/steps_seconds': 1800.0,
    'goodput/devices': 2.0,
  }
  _leave(where, found[LONG.name].name, json.dumps(last), done=True)
  [study] = [s for s in mini.studies if s.name == NODES[-1].name]
  _leave(where, study.finals_of(None)[0].name, json.dumps(last), done=True)
  lines = plan_table.text(NODES, mini, where, papers_own=False).splitlines()
  # 80 steps of fine-tuning 24 px, like 400 or 800 of pre-training.
  long, short = 9.44, 1.26
  total = long * (1 + 80 / 800) + short * (1 + 80 / 400)
  # The finished ones are the long pre-training and the short one's fine-tuning.
  done = long + short * 80 / 400
  assert lines.pop() == (
    f'All runs: {total:.1f} teraFLOPs. The finished ones made'
    f' {1000 * done / (2 * 3600):.1f} GFLOP/s of a device; at this speed'
    f' {2 * (total - done) / done:.1f} device hours are left.'
  )
  assert lines.pop() == (
    'Fine-tuning: 2 studies of 2 runs, 1 finished, 1.00 device hours.'
  )
  assert [line.split() for line in lines] == [
    ['Pre-training', 'teraFLOPs', 'Steps', 'Device', 'hours', 'State'],
    [*LONG.name.split(), '9.4', '800', '1.00', 'finished'],
    [*SHORT.name.split(), '1.3', '400', '—', 'not', 'begun'],
    ['-' * len(lines[3])],
    ['2', 'runs', '10.7', '1,200', '1.00', '1', 'finished'],
  ]


def test_fine_tuning_counts_all_runs_of_the_protocol(paper):
  nodes = [Transfer(SHORT, values.CIFAR10)]
  # Four rates and three seeds of 10,000 steps of 512 images. A forward pass at
  # 384 px has 45.3 billion multiply-adds; with 6 operations each: 9.74.
  assert plan_table.finetuning(nodes, paper, {}, papers_own=True) == (
    'Fine-tuning: 1 study of 7 runs, 9.7 exaFLOPs, 0 finished.'
  )
  assert plan_table.finetuning([SHORT], paper, {}, papers_own=True) == (
    'No fine-tuning.'
  )


def test_notes_name_the_source_of_core_days(paper, where):
  def notes():
    text = plan_table.text([LONG, SHORT], paper, where, papers_own=True)
    return text.partition('No fine-tuning.\n')[2].splitlines()

  missing = (
    'Core-days of {} runs are unknown: --plan --topology=v3:16x16 compiles'
    ' their steps, which takes minutes each.'
  )
  assert notes() == [missing.format(2)]
  plans = [
    {
      'config': f'configs/pretrain.py:{model},jft300m,epochs={epochs}',
      'topology': 'v3:16x16',
      'core_days_raw': 5.0,
      'libtpu': f'0.0.{epochs}',
      'jax': '0.1',
    }
    for model, epochs in (('ViT-L/16', 14), ('ViT-L/32', 7))
  ]
  from_plan = (
    'Core-days are estimates of vit_jax.plan for TPUv3, from plan.json, and'
    f' count steps only. {analysis.RESTS_ON}'
  )
  (where.local / 'plan.json').write_text(json.dumps(plans[:1]))
  one = 'Compiled by libtpu 0.0.14, jax 0.1.'
  assert notes() == [from_plan, one, missing.format(1)]
  (where.local / 'plan.json').write_text(json.dumps(plans))
  both = 'Compiled by libtpu 0.0.14, jax 0.1; libtpu 0.0.7, jax 0.1.'
  assert notes() == [from_plan, both]
  # Plans of earlier versions do not name the compiler.
  del plans[0]['libtpu'], plans[1]['libtpu']
  (where.local / 'plan.json').write_text(json.dumps(plans))
  assert notes() == [from_plan]


def test_a_miniature_is_not_planned(mini, where):
  with pytest.raises(ValueError, match=r'v3:2x2 is for --scale=paper'):
    plan_table.text(NODES, mini, where, papers_own=False, topology='v3:2x2')


@pytest.mark.gate
def test_all_items_have_rows(where):
  design = Design('mini', 3)
  nodes = with_needs(
    node for item in items.find(['all']) for node in design.nodes(item)
  )
  sweep = reading.load('configs/sweeps/reproduce.py:all,scale=mini,seeds=3')
  rows = plan_table.rows(nodes, sweep, where, {}, {}, papers_own=False)
  assert [row.name for row in rows] == [
    node.name for node in nodes if isinstance(node, Pretraining)
  ]
  assert len(rows) > 150
  assert all(row.steps > 50 for row in rows)


@pytest.mark.gate
def test_fine_tuning_on_vtab_is_counted(where):
  """3 models on 19 tasks with three seeds; in miniature 8 tasks with one."""
  nodes = with_needs(items.ITEMS['table9'].nodes)
  sweep = reading.load('configs/sweeps/reproduce.py:table9,scale=paper')
  line = plan_table.finetuning(nodes, sweep, {}, papers_own=True)
  assert line.startswith('Fine-tuning: 57 studies of 171 runs, ')
  # Three seeds of 2,500 steps of 512 images. ViT-L/16 at 384 px has 191.2
  # billion multiply-adds per image; with 6 operations each: 4.4.
  [node] = [
    node
    for node in nodes
    if node.name == 'ViT-L/16, JFT-300M, 14 epochs to VTAB Pets'
  ]
  line = plan_table.finetuning([node], sweep, {}, papers_own=True)
  assert line == 'Fine-tuning: 1 study of 3 runs, 4.4 exaFLOPs, 0 finished.'
  sweep = reading.load('configs/sweeps/reproduce.py:table9,scale=mini')
  line = plan_table.finetuning(nodes, sweep, {}, papers_own=False)
  assert line == 'Fine-tuning: 24 studies of 24 runs, 0 finished.'

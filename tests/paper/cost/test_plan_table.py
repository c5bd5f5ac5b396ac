"""Guards: --plan prints the costs, the states of runs, and totals."""

import json

import pytest
from etils import epath

from vit_jax.paper.cost import plan_table, planning
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Transfer, with_needs
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


def test_a_miniature_is_not_planned(mini, where):
  with pytest.raises(ValueError, match=r'v3:2x2 is for --scale=paper'):
    plan_table.text(NODES, mini, where, papers_own=False, topology='v3:2x2')

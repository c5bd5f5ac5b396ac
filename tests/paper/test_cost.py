"""Guards: the cost of runs follows from configs, and from compiled plans."""

import dataclasses
import json
import os
import subprocess

import pytest
from etils import epath

from tests import commands, run_files
from vit_jax import accounting, models
from vit_jax.configs import midi, mini
from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import cost, planning
from vit_jax.paper.numbers import CIFAR10
from vit_jax.paper.runs import Pretraining, Transfer, with_needs
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Sweep

# Operations. ------------------------------------------------------------------


def test_the_cost_of_a_run_comes_from_its_own_config():
  sizes = {'width': 4, 'depth': 2, 'heads': 1, 'mlp_dim': 8}
  model = {'name': 'ViT-B/32', 'patch_size': [8, 8], 'dropout_rate': None}
  config = {
    **{'model': model | sizes, 'num_classes': 5, 'image_size': [16, 16]},
    **{'channels': 3, 'data': {'batch_size': 10}, 'total_steps': 100},
  }
  # 4 patches of 192 numbers, 2 blocks on 5 tokens, and the head. A block has
  # query, key, value and output projections, the MLP, scores and weighted sums.
  block = 5 * 4 * 4 * 4 + 5 * 2 * 4 * 8 + 2 * 5 * 5 * 4
  macs = 4 * 192 * 4 + 2 * block + 4 * 5
  # A multiply-accumulate is two operations; 1,000 images take three passes.
  assert cost.teraflops(config) == pytest.approx(macs * 2 * 3 * 1000 / 1e12)


def test_device_hours_cover_all_devices_but_no_restarts():
  metrics = {
    **{'goodput/steps_seconds': 3000.0, 'goodput/input_seconds': 600.0},
    **{'goodput/restart_seconds': 600.0, 'goodput/devices': 4.0},
  }
  assert cost.device_hours(metrics) == pytest.approx(4.0)
  assert cost.device_hours({'test/seconds': 9.0}) is None


# Counting all models takes a minute.
_SMALL = {
  'paper': ('BiT-R50x1',),
  'mini': ('ViT-B/32',),
  'midi': ('ViT-B/32',),
}


@pytest.mark.parametrize(
  ('scale', 'model'),
  [
    pytest.param(s, m, marks=[] if m in _SMALL[s] else pytest.mark.slow)
    for s in cost.MACS
    for m in cost.MACS[s]
  ],
)
def test_kept_counts_are_those_of_the_models(scale, model):
  if scale == 'paper':
    built = models.build(model, num_classes=1000)
    assert accounting.forward_macs(built, (224, 224)) == cost.MACS[scale][model]
    return
  smaller = {'mini': mini.MINI, 'midi': midi.MIDI}[scale]
  config = mini.make(f'{model},jft300m,epochs=7', smaller)
  run = Pretraining(model, epochs=7)
  counted = cost.teraflops(config)
  assert cost.teraflops_in_miniature(run, scale) == pytest.approx(counted, 1e-9)


# The table of runs. -----------------------------------------------------------

LONG = Pretraining('ViT-L/16', epochs=14)
SHORT = Pretraining('ViT-L/32', epochs=7)
NODES = with_needs([Transfer(SHORT, CIFAR10), Transfer(LONG, CIFAR10)])


def _leave(where, name, row, done=None):
  """Writes the files of a run of 2,000 steps."""
  config = {'total_steps': 2000}
  run_files.leave(where.workdir(name), row, config=config, done=done)


@pytest.fixture
def where(tmp_path):
  return Folders(tmp_path, epath.Path(tmp_path))


def _words(text):
  return [line.split() for line in text.splitlines()]


def test_costs_and_states_of_runs_at_the_papers_scale(where):
  tuned = Transfer(Pretraining('ViT-B/32', epochs=7), CIFAR10)
  nodes = with_needs([LONG, tuned])
  sweep = Sweep([reproduce.at_paper_scale(node, {}) for node in nodes])
  first = planning.pretraining_runs(nodes, sweep)
  _leave(where, first[LONG.name].name, {'step': 1200})
  plan = _plan(7.5, B16.replace('16', '32'))
  (where.local / 'plan.json').write_text(json.dumps([plan]))
  head, *rows = _words(planning.text(nodes, sweep, where, scale='paper'))
  assert head == ['Runs', 'exaFLOPs', 'Steps', 'Core-days']
  # 14 epochs of 303 million images in batches of 4096.
  assert rows[0][4:] == ['1,566.7', '1,035,644', '—', 'begun']
  assert rows[1][4:] == ['56.1', '517,822', '7.5', 'not', 'begun']
  # Four rates and three seeds of 10,000 steps of 512 images of 145 tokens.
  block = 145 * (4 * 768**2 + 2 * 768 * 3072) + 2 * 145**2 * 768
  macs = 12 * block + 144 * 3072 * 768
  exaflops = 6 * macs * 512 * 70_000 / 1e18
  assert rows[2][:2] == ['7', 'runs']
  assert rows[2][4] == f'{exaflops:.1f}'
  assert rows[4][:2] == ['9', 'runs']


def test_a_miniature_has_compute_and_the_hours_that_are_left(where):
  sweep = Sweep([reproduce.in_miniature(node) for node in NODES])
  runs = planning.pretraining_runs(NODES, sweep)
  times = {'goodput/steps_seconds': 1800.0, 'goodput/devices': 2.0}
  last = {'step': 2000} | times
  _leave(where, runs[LONG.name].name, last, 2000)
  [study] = [s for s in sweep.studies if s.name == NODES[2].name]
  _leave(where, study.finals_of(None)[0].name, last, 2000)
  text = planning.text(NODES, sweep, where, scale='mini')
  _, *rows, _, total, left = text.splitlines()
  # 80 steps of fine-tuning 24 px, like 400 or 800 of pre-training.
  long, short = 9.44, 1.26
  every = long * (1 + 80 / 800) + short * (1 + 80 / 400)
  # The finished ones are the long pre-training and the short one's fine-tuning.
  done = long + short * 80 / 400
  assert f'{2 * (every - done) / done:.2f} device hours are left' in left
  assert [line.split()[-5:] for line in rows] == [
    *(['1.3', '400', '—', 'not', 'begun'],),
    *(['epochs', '9.4', '800', '1.00', 'finished'],),
    *(['1.00', '1', 'of', '2', 'finished'],),
  ]
  assert total.split()[2:] == [
    *(f'{every:.1f}', '1,360', '2.00', '2', 'of', '4', 'finished')
  ]


# Plans of the compiler. -------------------------------------------------------

B16 = 'configs/pretrain.py:ViT-B/16,jft300m,epochs=7'
SHORTER = B16.replace('B/16', 'L/32')


def _plan(core_days=10.0, config=B16, topology='v3:16x16', **others):
  return {
    **{'config': config, 'topology': topology, 'fits': True, 'error': None},
    # Older plans divide these by a correction.
    **{'core_days': 2 * core_days, 'core_days_raw': core_days},
    **others,
  }


def _days(folder, plans, config=B16, **overrides):
  # Each is what one command has added.
  (folder / 'plan.json').write_text('\n'.join(map(json.dumps, plans)))
  run = Run('a/run=pretraining', config, overrides)
  return planning.core_days({'a': run}, folder).get('a')


def test_plans_ignore_settings_that_do_not_affect_the_step(tmp_path):
  config = B16.replace(',epochs', ',few_shot=imagenet2012,epochs')
  free = {'seed': 3, 'data.dataset': 'folder:/jft', 'data.data_dir': '/data'}
  free |= {'evals.few_shot.every': 10, 'log.every': 5}
  assert _days(tmp_path, [_plan()], config, **free) == 10
  other = free | {'model.remat': 'full'}
  assert _days(tmp_path, [_plan()], config, **other) is None


@pytest.mark.parametrize(
  ('plan', 'found'),
  [
    *((_plan(), 10), (_plan(topology='v3:2x2'), 10)),
    # Plans for other cores, for no slice, for other runs, and a failed one.
    *((_plan(topology='v5e:16x16'), None), (_plan(topology=None), None)),
    (_plan(config=SHORTER), None),
    (_plan(overrides={'model.scan': 'true'}), None),
    (_plan(error='out of memory'), None),
    # A run that does not fit needs a fix, whose core-days count instead.
    (_plan(fits=False, fix=None), None),
    (_plan(fits=False, fix={'core_days_raw': 12.0}), 12),
  ],
)
def test_core_days_need_a_tpu_v3_plan_that_fits(tmp_path, plan, found):
  assert _days(tmp_path, [plan]) == found


def test_the_newest_plan_counts(tmp_path):
  plans = [_plan(1.0), _plan(3.0, topology='v3:2x2'), _plan(4.0, SHORTER)]
  assert _days(tmp_path, plans) == 3


def test_the_printed_command_plans_each_config_once(tmp_path):
  nodes = with_needs([SHORT, dataclasses.replace(SHORT, seed=1), LONG])
  sweep = Sweep([reproduce.at_paper_scale(node, {}) for node in nodes])
  where = Folders(tmp_path / 'a new folder', epath.Path(tmp_path))
  plan = json.dumps(_plan(2.5)).replace(B16, "'${!##--config=}'")
  # It stands in for vit_jax.plan.
  commands.write_program(tmp_path / 'python', f"echo '{plan}'")
  *_, command = planning.text(nodes, sweep, where, scale='paper').splitlines()
  path = f'{tmp_path}:{os.environ["PATH"]}'
  subprocess.run(command, shell=True, check=True, env={'PATH': path})
  assert len(planning.read(where.local)) == 2
  days = planning.core_days(
    planning.pretraining_runs(nodes, sweep), where.local
  )
  assert [*days.values()] == [2.5] * 3


@pytest.mark.parametrize('text', ['[{"config"', '[5]'])
def test_a_damaged_file_is_refused(tmp_path, text):
  (tmp_path / 'plan.json').write_text(text)
  with pytest.raises(ValueError, match='Move it away'):
    planning.read(tmp_path)

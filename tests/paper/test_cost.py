"""Guards: the cost of runs follows from configs, and from compiled plans."""

import json

import pytest
from etils import epath

from vit_jax import accounting, models
from vit_jax.configs import midi, mini
from vit_jax.paper import cost, costs, planning
from vit_jax.paper.numbers import CIFAR10
from vit_jax.paper.runs import Pretraining, Transfer, with_needs
from vit_jax.sweep import reading
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run

SWEEP = 'configs/sweeps/reproduce.py'

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
  'paper': ('ViT-B/32', 'BiT-R50x1'),
  'mini': ('ViT-B/32', 'R50+ViT-B/32'),
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
NODES = with_needs([Transfer(LONG, CIFAR10), Transfer(SHORT, CIFAR10)])


def _leave(where, name, lines, *, done=False):
  """Writes the files of a run of 2,000 steps."""
  workdir = where.workdir(name)
  workdir.mkdir(parents=True)
  (workdir / 'config.json').write_text('{"total_steps": 2000}')
  (workdir / 'metrics.jsonl').write_text(lines)
  if done:
    (workdir / 'DONE').write_text('2000\n')


@pytest.fixture
def where(tmp_path):
  return Folders(tmp_path, epath.Path(tmp_path))


def _words(text):
  return [line.split() for line in text.splitlines()]


def test_costs_and_states_of_runs_at_the_papers_scale(where):
  sweep = reading.load(f'{SWEEP}:table6,scale=paper')
  runs = planning.pretraining_runs(NODES, sweep)
  _leave(where, runs[LONG.name].name, '{"step": 1200}\n')
  config = 'configs/pretrain.py:ViT-L/32,jft300m,epochs=7'
  (where.local / 'plan.json').write_text(json.dumps([_plan(181.0, config)]))
  head, *rows = _words(costs.text(NODES, sweep, where, papers_own=True))
  assert head == [
    *('Pre-training', 'exaFLOPs', 'Steps', 'Core-days', "Paper's", 'State')
  ]
  # 14 epochs of 303 million images in batches of 4096.
  assert rows[0][4:] == ['1,566.7', '1,035,644', '—', '0.68k', 'begun']
  assert rows[1][4:] == [*('195.7', '517,822', '181.0', '—', 'not', 'begun')]
  # Four rates and three seeds of 10,000 steps of 512 images for each ViT.
  assert ' '.join(rows[4][:7]) == 'Fine-tuning: 2 studies of 14 runs, 50.8'


def test_a_miniature_has_compute_and_the_hours_that_are_left(where):
  sweep = reading.load(f'{SWEEP}:table6,scale=mini')
  runs = planning.pretraining_runs(NODES, sweep)
  times = {'goodput/steps_seconds': 1800.0, 'goodput/devices': 2.0}
  last = json.dumps({'step': 2000} | times) + '\n'
  _leave(where, runs[LONG.name].name, last, done=True)
  [study] = [s for s in sweep.studies if s.name == NODES[-1].name]
  _leave(where, study.finals_of(None)[0].name, last, done=True)
  text = costs.text(NODES, sweep, where, papers_own=False)
  *rows, tuned, left = text.splitlines()
  # 80 steps of fine-tuning 24 px, like 400 or 800 of pre-training.
  long, short = 9.44, 1.26
  total = long * (1 + 80 / 800) + short * (1 + 80 / 400)
  # The finished ones are the long pre-training and the short one's fine-tuning.
  done = long + short * 80 / 400
  assert f'{total:.1f} teraFLOPs' in left
  assert f'{1000 * done / (2 * 3600):.1f} GFLOP/s' in left
  assert f'{2 * (total - done) / done:.1f} device hours are left' in left
  assert '2 runs, 1 finished, 1.00 device hours' in tuned
  assert [line.split()[-5:] for line in rows[1:3]] == [
    *(['epochs', '9.4', '800', '1.00', 'finished'],),
    *(['1.3', '400', '—', 'not', 'begun'],),
  ]
  assert rows[-1].split()[2:] == ['10.7', '1,200', '1.00', '1', 'finished']
  with pytest.raises(ValueError, match=r'v3:2x2 is for --scale=paper'):
    costs.text(NODES, sweep, where, papers_own=False, topology='v3:2x2')


# Plans of the compiler. -------------------------------------------------------

B16 = 'configs/pretrain.py:ViT-B/16,jft300m,epochs=7'
V3 = 'v3:16x16'


def _run(config=B16, **overrides):
  overrides = {key.replace('__', '.'): v for key, v in overrides.items()}
  return Run('a/run=pretraining', config, overrides)


def _plan(core_days=10.0, config=B16, topology=V3, **others):
  return {
    **{'config': config, 'topology': topology, 'fits': True, 'error': None},
    # Older plans divide these by a correction.
    **{'core_days': 2 * core_days, 'core_days_raw': core_days},
    **others,
  }


def _days(plans, topology='', **runs):
  found = planning.with_days(plans, runs, topology)
  return {name: planning.days(plan) for name, plan in found.items()}


def test_plans_ignore_settings_that_do_not_affect_the_step():
  run = _run(
    'configs/pretrain.py:ViT-B/16,jft300m,few_shot=imagenet2012,epochs=7',
    **{'seed': 3, 'data__dataset': 'folder:/jft', 'data__data_dir': '/data'},
    **{'evals__few_shot__every': 10, 'log__every': 5, 'model__remat': 'full'},
  )
  found = planning.planned(run)
  assert (found.config, found.overrides) == (B16, {'model.remat': 'full'})


@pytest.mark.parametrize(
  ('plan', 'found'),
  [
    *((_plan(), 10), (_plan(topology='v3:2x2'), 10)),
    # Plans for other cores, for no slice, for other runs, and a failed one.
    *((_plan(topology='v5e:16x16'), None), (_plan(topology=None), None)),
    (_plan(config=B16.replace('16', '32')), None),
    (_plan(overrides={'seed': '0'}), None),
    (_plan(error='out of memory'), None),
    # A run that does not fit needs a fix, whose core-days count instead.
    (_plan(fits=False, fix=None), None),
    (_plan(fits=False, fix={'core_days_raw': 12.0}), 12),
  ],
)
def test_core_days_need_a_tpu_v3_plan_that_fits(plan, found):
  assert _days([plan], name=_run()) == ({'name': found} if found else {})


def test_the_newest_plan_of_the_requested_slice_counts():
  plans = [_plan(1.0), _plan(2.0), _plan(3.0, topology='v3:2x2')]
  for topology, days in (('', 3), (V3, 2), ('v5e:16x16', None)):
    assert _days(plans, topology, name=_run()).get('name') == days


def test_missing_plans_are_made_once_and_kept(tmp_path):
  (tmp_path / 'plan.json').write_text(json.dumps([_plan()]))
  other = 'configs/pretrain.py:ViT-B/32,jft300m'
  full = {'model__remat': 'full'}
  runs = [_run(seed=0), _run(seed=0, **full), _run(seed=1, **full), _run(other)]
  called = []

  def planner(words):
    called.append(words)
    # The earlier plans are on disk already.
    assert len(planning.read(tmp_path)) == len(called)
    return _plan(5.0, words[0].removeprefix('--config='))

  for _ in range(2):
    planning.compile_missing(runs, tmp_path, 'v3-512', str, planner)
  flags = [f'--topology={V3}', '--json']
  assert called == [
    [f'--config={B16}', '--config.model.remat=full', *flags],
    [f'--config={other}', *flags],
  ]
  found = _days(planning.read(tmp_path), **dict(zip('abcd', runs, strict=True)))
  assert found == {'a': 10, 'b': 5, 'c': 5, 'd': 5}
  # Another slice needs another plan.
  planning.compile_missing(runs[:1], tmp_path, 'v3:2x2', str, planner)
  assert called[-1][-2] == '--topology=v3:2x2'


def test_runs_that_cannot_be_planned_are_reported_at_the_end(tmp_path):
  def planner(words):
    if len(words) == 3:
      raise ValueError('no such model')
    return _plan()

  runs = [_run(), _run(model__scan=True)]
  with pytest.raises(ValueError, match=f'1 of 2 not planned:\n{B16}: no such'):
    planning.compile_missing(runs, tmp_path / 'new', V3, str, planner)
  [plan] = planning.read(tmp_path / 'new')
  assert plan['overrides'] == {'model.scan': 'true'}


@pytest.mark.parametrize('text', ['[{"config"', '[5]'])
def test_a_damaged_file_is_refused(tmp_path, text):
  (tmp_path / 'plan.json').write_text(text)
  with pytest.raises(ValueError, match='Move it away'):
    planning.read(tmp_path)

"""Guards: pre-training runs find their plans, and missing plans are made."""

import json
import pathlib

import pytest

from vit_jax.paper.cost import planning
from vit_jax.paper.runs import Pretraining, Transfer, with_needs
from vit_jax.plan import devices
from vit_jax.sweep import reading
from vit_jax.sweep.spec import Run

B16 = 'configs/pretrain.py:ViT-B/16,jft300m,epochs=7'
V3 = 'v3:16x16'


def _run(config=B16, **overrides):
  overrides = {key.replace('__', '.'): v for key, v in overrides.items()}
  return Run('a/run=pretraining', config, overrides)


def _plan(core_days=10.0, config=B16, topology=V3, **others):
  return {
    'config': config,
    'topology': topology,
    'fits': True,
    'error': None,
    # Older plans divide these by a correction.
    'core_days': 2 * core_days,
    'core_days_raw': core_days,
    **others,
  }


def _write(folder: pathlib.Path, *plans):
  (folder / 'plan.json').write_text(json.dumps(plans))


def test_plans_ignore_settings_that_do_not_affect_the_step():
  run = _run(
    'configs/pretrain.py:ViT-B/16,jft300m,few_shot=imagenet2012,epochs=7',
    seed=3,
    data__dataset='folder:/jft',
    data__data_dir='/data',
    evals__few_shot__every=10,
    log__every=5,
    model__remat='full',
  )
  found = planning.planned(run)
  assert found.config == B16
  assert found.overrides == {'model.remat': 'full'}


def test_plans_are_matched_to_the_runs_of_a_sweep():
  start = Pretraining('ViT-L/16', 'JFT-300M', 14)
  sweep = reading.load('configs/sweeps/reproduce.py:table6,scale=paper')
  nodes = with_needs([Transfer(start, 'CIFAR-10')])
  runs = planning.pretraining_runs(nodes, sweep)
  assert list(runs) == ['ViT-L/16, JFT-300M, 14 epochs']
  config = 'configs/pretrain.py:ViT-L/16,jft300m,epochs=14'
  assert planning.core_days([_plan(697.0, config)], runs) == {start.name: 697}


@pytest.mark.parametrize(
  ('plan', 'found'),
  [
    (_plan(), 10),
    (_plan(topology='v3:2x2'), 10),
    # Plans for other cores, for no slice, for other runs, and a failed one.
    (_plan(topology='v5e:16x16'), None),
    (_plan(topology=None), None),
    (_plan(config=B16.replace('16', '32')), None),
    (_plan(overrides={'seed': '0'}), None),
    (_plan(error='out of memory'), None),
    # A run that does not fit needs a fix, whose core-days count instead.
    (_plan(fits=False, fix=None), None),
    (_plan(fits=False, fix={'core_days_raw': 12.0}), 12),
  ],
)
def test_core_days_need_a_tpu_v3_plan_that_fits(plan, found):
  days = planning.core_days([plan], {'name': _run()})
  assert days == ({} if found is None else {'name': found})


def test_the_newest_plan_of_the_requested_slice_counts():
  plans = [_plan(1.0), _plan(2.0), _plan(3.0, topology='v3:2x2')]
  runs = {'name': _run()}
  assert planning.core_days(plans, runs) == {'name': 3}
  assert planning.core_days(plans, runs, V3) == {'name': 2}
  assert planning.core_days(plans, runs, 'v5e:16x16') == {}


def test_missing_plans_are_made_once_and_kept(tmp_path):
  _write(tmp_path, _plan())
  runs = [
    _run(seed=0),
    _run(model__remat='full', seed=0),
    _run(model__remat='full', seed=1),
    _run('configs/pretrain.py:ViT-B/32,jft300m', model__scan=True),
  ]
  lines, called = [], []

  def planner(words):
    called.append(words)
    # The earlier plans are on disk already.
    assert len(planning.read(tmp_path)) == len(called)
    return _plan(5.0, words[0].removeprefix('--config='))

  arguments = (runs, tmp_path, 'v3-512', lines.append, planner)
  assert planning.compile_missing(*arguments) == V3
  assert called == [
    [f'--config={B16}', '--config.model.remat=full', *_FLAGS],
    [
      '--config=configs/pretrain.py:ViT-B/32,jft300m',
      '--config.model.scan=true',
      *_FLAGS,
    ],
  ]
  assert lines[0] == f'0 of 2 planned: {B16}'
  assert lines[1].startswith('1 of 2 planned, about 0 s left: configs/')
  days = planning.core_days(
    planning.read(tmp_path), dict(zip('abcd', runs, strict=True))
  )
  assert days == {'a': 10, 'b': 5, 'c': 5, 'd': 5}
  planning.compile_missing(*arguments)
  assert len(called) == 2
  # Another slice needs another plan.
  planning.compile_missing(runs[:1], tmp_path, 'v3:2x2', print, planner)
  assert called[-1][-2] == '--topology=v3:2x2'


_FLAGS = (f'--topology={V3}', '--json')


def test_runs_that_cannot_be_planned_are_reported_at_the_end(tmp_path):
  folder = tmp_path / 'new'

  def planner(words):
    if len(words) == 3:
      raise ValueError('no such model')
    return _plan()

  runs = [_run(), _run(model__scan=True)]
  with pytest.raises(ValueError, match=f'1 of 2 not planned:\n{B16}: no such'):
    planning.compile_missing(runs, folder, V3, print, planner)
  assert [plan['overrides'] for plan in planning.read(folder)] == [
    {'model.scan': 'true'}
  ]


def test_without_the_compiler_only_existing_plans_are_used(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(devices, 'have_compiler', lambda: False)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[plan\]"'):
    planning.compile_missing([_run()], tmp_path, V3, print)
  _write(tmp_path, _plan())
  planning.compile_missing([_run()], tmp_path, V3, print)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('[{"config"', 'is not valid JSON'),
    ('[5]', 'list of objects with a "config"'),
  ],
)
def test_a_damaged_file_is_refused(tmp_path, text, message):
  (tmp_path / 'plan.json').write_text(text)
  with pytest.raises(ValueError, match=message):
    planning.read(tmp_path)


def test_the_planner_runs_in_another_process(monkeypatch, tmp_path):
  program = _program(tmp_path, 'echo talk >&2; echo "{\\"config\\": \\"$*\\"}"')
  monkeypatch.setattr(planning.sys, 'executable', program)
  assert planning.plan(['--json']) == {'config': '-m vit_jax.plan --json'}


def _program(folder, text):
  path = folder / 'python'
  path.write_text(f'#!/bin/sh\n{text}\n')
  path.chmod(0o755)
  return str(path)

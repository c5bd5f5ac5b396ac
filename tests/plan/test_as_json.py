"""Guards: a plan's figures, page and table are right for a made-up estimate."""

import collections
import json

import pytest

from vit_jax.configs import pretrain
from vit_jax.plan import (
  as_json,
  compiling,
  devices,
  one_run,
  render,
)
from vit_jax.plan import estimate as estimate_lib

# The keys that `--json` promises.
REQUIRED = (
  *('config', 'topology', 'devices', 'params', 'forward_gmacs'),
  *('total_exaflops', 'total_steps', 'hbm_gib', 'hbm_usable_gib', 'fits'),
  *('step_ms', 'images_per_sec_per_core', 'mfu', 'core_days'),
  *('core_days_raw', 'core_days_range', 'paper_core_days'),
)


def _estimate(seconds):
  """Three quarters of the time are products of blocks, a quarter is a copy."""
  rows = [
    estimate_lib.Row(
      f'fusion.{i}', f'jit(f)/block_{i}/dot', 'matmul', 2, seconds / 4
    )
    for i in range(3)
  ]
  rows.append(estimate_lib.Row('copy.1', '', 'copies', 1, seconds / 4))
  return estimate_lib.Estimate(
    rows,
    uncovered=collections.Counter({'sort': 2**20}),
    overlapped_bytes=2**29,
    assumptions=['a loop'],
  )


def _plan(
  argument='ViT-H/14,jft300m', topology='v3:16x16', seconds=0.25, **fix
):
  run = one_run.Run(
    f'configs/pretrain.py:{argument}', pretrain.get_config(argument)
  )
  plan = one_run.analyse(run)
  memory = compiling.Memory(2**30, 2**31, 0, 2**20, temporaries=5 * 2**30)
  target = devices.parse(topology)
  compiled = compiling.Compiled(
    memory, target.chip.hbm_usable_bytes, _estimate(seconds), 9.0
  )
  return one_run.Plan(
    run, plan.config, target, plan.analysis, compiled, memory, **fix
  )


def test_figures_of_a_run():
  figures = as_json.figures(_plan(), correction=0.8)
  assert set(REQUIRED) <= set(figures)
  json.dumps(figures)
  assert figures['topology'] == 'v3:16x16'
  assert figures['devices'] == figures['cores'] == 512
  assert figures['device'] == 'TensorCore'
  assert figures['hbm_gib'] == pytest.approx(8 + 1 / 1024)
  assert figures['hbm']['temporaries'] == 5
  assert figures['fits'] is True
  assert figures['step_ms'] == 250
  assert figures['step_ms_corrected'] == pytest.approx(312.5)
  assert figures['images_per_sec'] == 4096 / 0.25
  # Uncorrected: 4096 images on 512 cores in a quarter second.
  assert figures['images_per_sec_per_core'] == pytest.approx(32)
  operations = 6 * figures['forward_gmacs'] * 1e9 * 4096
  assert figures['mfu'] == pytest.approx(operations / 0.25 / (512 * 61.6e12))
  days = 1_035_644 * 0.25 / 86400
  assert figures['core_days_raw'] == pytest.approx(512 * days)
  assert figures['core_days'] == pytest.approx(512 * days / 0.8)
  assert figures['wall_days'] == pytest.approx(days / 0.8)
  assert figures['paper_core_days'] == 2500
  assert figures['shares']['matmul'] == 0.75
  # Equal operations of all blocks are merged.
  assert figures['heaviest'] == [
    {'op': 'jit(f)/block_*/dot', 'class': 'matmul', 'times': 6, 'ms': 187.5},
    {'op': 'copy.*', 'class': 'copies', 'times': 1, 'ms': 62.5},
  ]
  said = ' '.join(figures['assumptions'])
  assert 'divided by 0.8' in said
  assert 'A loop.' in said
  assert 'sort (1 MiB)' in said
  assert 'Asynchronous copies (0.50 GiB a step)' in said
  assert 'use 0.6 of the links' in said
  assert 'step_ms in tables and JSON, and core_days_raw' in said


def test_unknown_figures_are_none():
  plan = one_run.analyse(_plan().run)
  figures = as_json.figures(plan)
  assert set(REQUIRED) <= set(figures)
  for key in ('topology', 'hbm_gib', 'fits', 'step_ms', 'core_days', 'mfu'):
    assert figures[key] is None
  assert figures['params'] > 600_000_000
  assert figures['paper_core_days'] == 2500
  page = render.page(figures, 'Install it.')
  assert 'Install it.' in page
  assert '655,835,251 parameters' in page
  assert 'None' not in page


def _plan_that_does_not_fit(**others):
  plan = _plan(seconds=1.0)
  small = compiling.Memory(2**30, 2**31, 0, 0)
  return one_run.Plan(
    plan.run,
    plan.config,
    plan.target,
    plan.analysis,
    None,
    compiling.Memory(2**30, 2**31, 0, 0, temporaries=17 * 2**30),
    **others,
  ), small


def test_a_plan_that_does_not_fit_shows_a_fix():
  fix = _plan(changes={'accumulation_steps': 4})
  plan, _ = _plan_that_does_not_fit(fix=fix)
  figures = as_json.figures(plan)
  assert (figures['fits'], figures['step_ms']) == (False, None)
  assert figures['fix']['changes'] == {'accumulation_steps': 4}
  assert figures['fix']['fits'] is True
  page = render.page(figures)
  assert (
    'Does not fit: needs at least 20.0 GiB on each device, but only 15.5 are'
    ' usable (4.5 too many).\n\nWith --config.accumulation_steps=4 the run'
    ' fits.\nFits: 8.0'
  ) in page
  json.dumps(figures)


def test_a_table():
  fix = _plan(changes={'accumulation_steps': 4})
  reports = [
    as_json.figures(_plan_that_does_not_fit(fix=fix)[0]),
    as_json.figures(_plan('ViT-B/16,jft300m')),
  ]
  lines = render.table(reports, 'Note.').splitlines()
  columns = [line.split() for line in lines[:4]]
  assert columns[0][:6] == [
    *('config', 'topology', 'fits', 'GiB', 'usable', 'GiB')
  ]
  assert columns[1][:5] == [
    'ViT-H/14,jft300m',
    'v3:16x16',
    'no',
    '20.0',
    '15.5',
  ]
  assert columns[2][:5] == [
    'accumulation_steps=4',
    'v3:16x16',
    'yes',
    '8.0',
    '15.5',
  ]
  assert columns[3][:3] == ['ViT-B/16,jft300m', 'v3:16x16', 'yes']
  assert columns[1][5] == '-'
  assert 'Note.' in lines

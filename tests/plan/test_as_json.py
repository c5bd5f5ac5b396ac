"""Guards: a plan's figures, page and table are right for a made-up estimate."""

import collections
import dataclasses
import json
import re

import jax
import pytest

from vit_jax.configs import pretrain
from vit_jax.plan import (
  analysis,
  as_json,
  compilers,
  compiling,
  devices,
  one_run,
  remedies,
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


def test_what_stands_beside_the_papers_core_days_is_not_corrected():
  # A correction would rest on the paper's own runs.
  figures = as_json.figures(_plan())
  assert figures['core_days'] == figures['core_days_raw']
  assert figures['step_ms_corrected'] == figures['step_ms']
  low, high = figures['core_days_range']
  assert low == pytest.approx(figures['core_days_raw'] / 1.05)
  assert high == pytest.approx(figures['core_days_raw'] / 0.59)
  corrected = as_json.figures(_plan(), correction=0.8)
  assert corrected['core_days_range'] == [low, high]
  for text in (render.page(figures), render.table([figures, figures])):
    # Once, beside the figure: what a reader may conclude from it.
    assert ' '.join(text.split()).count(analysis.RESTS_ON) == 1
    assert '1,805' not in text


def test_chips_that_are_one_device_count_both_cores():
  figures = as_json.figures(_plan(topology='v4:4x4x4'))
  assert (figures['devices'], figures['cores']) == (64, 128)
  assert figures['images_per_sec_per_core'] == 4096 / 0.25 / 128
  days = 1_035_644 * 0.25 / 86400
  assert figures['core_days_raw'] == pytest.approx(128 * days)
  assert figures['core_days'] == pytest.approx(128 * days)


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


def test_the_verdict_comes_first():
  lines = render.page(as_json.figures(_plan())).splitlines()
  assert lines[:5] == [
    'configs/pretrain.py:ViT-H/14,jft300m on v3:16x16: 512 devices, each a'
    ' TensorCore',
    'Fits: 8.0 of 15.5 GiB on each device (7.5 to spare).',
    'A step takes 250 ms, the run 3 days: 1,534 TPUv3-core-days, 1,461 to 2,600'
    ' at',
    'the speed of real runs (the paper: 2,500).',
    "Core-days are the TPU compiler's estimate. Real speed was 1.05 times the",
  ]
  page = '\n'.join(lines)
  assert '  parameters                       1.000  ##\n' in page
  assert '  matmul                   187.5  75.0%  #####' in page
  assert max(map(len, lines)) <= 85


def test_other_chips_are_not_compared_with_the_paper():
  page = render.page(as_json.figures(_plan(topology='v5e:16x16')))
  words = ' '.join(page.split())
  assert re.search(
    r'TPUv5e-core-days, [^(]+\(the paper: 2,500 of TPUv3\)', words
  )


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


def test_the_page_names_the_compiler_and_warns_of_untested_ones(monkeypatch):
  monkeypatch.setattr(compilers, 'libtpu', lambda: '0.0.7')
  monkeypatch.setattr(compilers, 'difference', '{} is another.'.format)
  figures = as_json.figures(_plan())
  assert figures['libtpu'] == '0.0.7'
  assert figures['jax'] == jax.__version__
  assert figures['backend'] is None
  assert figures['lock_difference'] == 'tpu is another.'
  page = render.page(figures)
  named = f'libtpu 0.0.7, jax {jax.__version__}'
  assert f'\ncompiler  {named}\n' in page
  assert '\n\ntpu is another.\n\n' in page
  table = render.table([figures, figures])
  assert table.count('- tpu is another.') == 1
  assert table.count(f'- Compiled by {named}.') == 1

  # A plan that only counts has no compiler.
  run = one_run.Run('B', pretrain.get_config('ViT-B/16,imagenet2012'))
  figures = as_json.figures(one_run.analyse(run))
  assert figures['libtpu'] is figures['lock_difference'] is None
  assert 'compiler' not in render.page(figures)


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


def test_only_v3_is_compared_with_the_papers_core_days():
  reports = [
    as_json.figures(_plan(topology=slice_))
    for slice_ in ('v3:16x16', '2xv3:8x8', 'v5e:16x16')
  ]
  header, *rows = (
    line.split('  ') for line in render.table(reports).splitlines()[:4]
  )
  cells = [[cell.strip() for cell in row if cell] for row in [header, *rows]]
  column = cells[0].index('paper')
  assert [row[column] for row in cells[1:]] == ['2,500', '2,500', '-']


def test_a_table_without_devices_shows_counts():
  run = _plan().run
  text = render.table([as_json.figures(one_run.analyse(run))] * 2)
  header, row = text.splitlines()[:2]
  assert header.split()[2:] == ['params', 'GMACs', 'tokens', 'exaFLOPs']
  assert row.split()[2:4] == ['655,835,251', '167.32']
  assert row.split()[4] == '257'


def _searched(ended, fits=False):
  plan, _ = _plan_that_does_not_fit()
  candidate = remedies.Candidate({'accumulation_steps': 2}, 0, 0, 0)
  memory = compiling.Memory(0, 0, 0, 0, temporaries=18 * 2**30)
  compiled = compiling.Compiled(memory, 16 * 2**30, None, 2.0)
  broken = dataclasses.replace(compiled, error='crash')
  tried = tuple(remedies.Tried(candidate, one) for one in (compiled, broken))
  return dataclasses.replace(plan, tried=tried, ended=ended)


def test_the_reason_for_the_end_of_a_search_is_shown():
  figures = as_json.figures(_searched('--max_tries is reached'))
  assert figures['search_ended'] == '--max_tries is reached'
  assert figures['tried'] == [
    {
      'changes': {'accumulation_steps': 2},
      'hbm_gib': 18,
      'fits': False,
      'compile_seconds': 2.0,
      'error': error,
    }
    for error in (None, 'crash')
  ]
  page = render.page(figures)
  assert 'with which the run fits: --max_tries is reached.' in page
  assert '    18.0 GiB  --config.accumulation_steps=2' in page.splitlines()[5:]
  assert '       error  --config.accumulation_steps=2' in page.splitlines()
  table = render.table([figures] * 2)
  assert 'on v3:16x16: --max_tries is reached.' in ' '.join(table.split())
  # Nothing was tried at all.
  plan = dataclasses.replace(_searched('nothing fits'), tried=())
  page = render.page(as_json.figures(plan))
  assert 'No settings were found with which the run fits: nothing fits' in page
  assert 'Tried' not in page


def test_a_compiler_error_is_a_row():
  plan = dataclasses.replace(
    one_run.analyse(_plan().run), target=devices.parse('v3:4x4'), error='crash'
  )
  figures = as_json.figures(plan)
  assert (figures['error'], figures['fits']) == ('crash', None)
  assert 'Could not be planned: crash' in render.page(figures)
  table = render.table([figures, as_json.figures(_plan())])
  assert table.splitlines()[1].split()[1:3] == ['v3:4x4', 'error']
  assert 'on v3:4x4 could not be planned: crash' in ' '.join(table.split())


@pytest.mark.parametrize(
  'needed, usable, source, text',
  [
    (4.0, 8.0, 'compiler', 'the memory ran out, though 4.0 of 8.0 GiB'),
    (4.0, 8.0, 'lower bound', 'Does not fit: needs at least 4.0 GiB on each'),
    (
      9.0,
      8.0,
      'compiler',
      '9.0 GiB on each device, but only 8.0 are usable',
    ),
    (9.0, None, 'compiler', 'Does not fit: needs 9.0 GiB'),
  ],
)
def test_a_run_too_large_for_this_machine_is_reported(
  needed, usable, source, text
):
  figures = as_json.figures(one_run.analyse(_plan().run)) | {
    'hbm_gib': needed,
    'hbm_usable_gib': usable,
    'hbm_source': source,
    'fits': False,
  }
  assert text in render.page(figures)

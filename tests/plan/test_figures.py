"""Guards: figures, page and table are right for a made-up estimate."""

import json

import pytest

from vit_jax.configs import pretrain
from vit_jax.plan import (
  analysis,
  compilers,
  devices,
  estimate,
  figures,
  render,
)

GIB = compilers.GIB
# The keys that `--json` promises.
REQUIRED = (
  *('config', 'topology', 'devices', 'params', 'forward_gmacs'),
  *('total_exaflops', 'total_steps', 'hbm_gib', 'hbm_usable_gib', 'fits'),
  *('step_ms', 'images_per_sec_per_core', 'mfu', 'core_days'),
  *('core_days_raw', 'core_days_range', 'paper_core_days'),
)


def _figures(topology='v3:16x16', seconds=0.25, temporaries=5, correction=1.0):
  """Three quarters of the time are products of blocks, a quarter is a copy."""
  argument = 'ViT-H/14,jft300m'
  config = analysis.resolve(pretrain.get_config(argument), 'tpu')
  name = f'configs/pretrain.py:{argument}'
  if not topology:
    return figures.of_run(name, config)
  target = devices.parse(topology)
  rows = [
    estimate.Row(
      f'fusion.{i}', f'jit(f)/block_{i}/dot', 'matmul', 2, seconds / 4
    )
    for i in range(3)
  ]
  rows.append(estimate.Row('copy.1', '', 'copies', 1, seconds / 4))
  made = estimate.Estimate(rows, assumptions=['A loop.'])
  made.uncovered['sort'] = 2**20
  compiled = compilers.Compiled(
    compilers.Memory(GIB, 2 * GIB, 0, 2**20, temporaries=temporaries * GIB),
    target.chip.hbm_usable_bytes,
    made if temporaries == 5 else None,
    9.0 if temporaries == 5 else None,
  )
  return figures.of_run(name, config, target, compiled, correction)


def test_figures_of_a_run():
  found = _figures(correction=0.8)
  assert set(REQUIRED) <= set(found)
  json.dumps(found)
  assert found['topology'] == 'v3:16x16'
  assert found['devices'] == found['cores'] == 512
  assert found['hbm_gib'] == pytest.approx(8 + 1 / 1024)
  assert found['hbm']['temporaries'] == 5
  assert found['fits'] is True
  assert found['step_ms'] == 250
  assert found['step_ms_corrected'] == pytest.approx(312.5)
  assert found['images_per_sec'] == 4096 / 0.25
  # Uncorrected: 4096 images on 512 cores in a quarter second.
  assert found['images_per_sec_per_core'] == pytest.approx(32)
  operations = 6 * found['forward_gmacs'] * 1e9 * 4096
  assert found['mfu'] == pytest.approx(operations / 0.25 / (512 * 61.6e12))
  days = 1_035_644 * 0.25 / 86400
  assert found['core_days_raw'] == pytest.approx(512 * days)
  assert found['core_days'] == pytest.approx(512 * days / 0.8)
  assert found['core_days_range'] == [
    pytest.approx(512 * days / speed) for speed in (1.05, 0.59)
  ]
  assert found['wall_days'] == pytest.approx(days / 0.8)
  assert found['paper_core_days'] == 2500
  assert found['shares']['matmul'] == 0.75
  # Equal operations of all blocks are merged.
  assert found['heaviest'] == [
    {'op': 'jit(f)/block_*/dot', 'class': 'matmul', 'times': 6, 'ms': 187.5},
    {'op': 'copy.*', 'class': 'copies', 'times': 1, 'ms': 62.5},
  ]
  said = ' '.join(found['assumptions'])
  for words in (
    'divided by 0.8',
    'A loop.',
    'sort (1 MiB)',
    '0.6 of the links',
  ):
    assert words in said


def test_gpus_have_days_but_no_core_days():
  found = _figures('h100x8')
  assert found['method'] == 'roofline, not measured'
  assert found['core_days'] is found['core_days_range'] is None
  assert found['device_days'] == 8 * found['wall_days']
  assert 'roofline' in found['assumptions'][0]


def test_unknown_figures_are_none():
  found = _figures(topology=None)
  assert set(REQUIRED) <= set(found)
  for key in ('topology', 'hbm_gib', 'fits', 'step_ms', 'core_days', 'mfu'):
    assert found[key] is None
  page = render.page(found, 'Install it.')
  assert 'Install it.' in page
  assert f'{found["params"]:,} parameters' in page
  assert 'None' not in page


def test_a_page_and_a_table_show_the_figures():
  fix = _figures() | {'changes': {'accumulation_steps': 4}}
  small = _figures(temporaries=17) | {'fix': fix}
  assert (small['fits'], small['step_ms']) == (False, None)
  page = render.page(small)
  for words in (
    'at least 20.0 GiB',
    'only 15.5 are usable (4.5 too many)',
    'With --config.accumulation_steps=4 the run fits.\nFits: 8.0',
    'the paper: 2,500',
    'activations and working space',
  ):
    assert words in page
  lines = render.table([small, _figures(topology='v5e:4x4')], 'Note.')
  header, first, second, third = (
    line.split() for line in lines.splitlines()[:4]
  )
  assert header[:4] == ['config', 'topology', 'fits', 'GiB']
  name = 'configs/pretrain.py:ViT-H/14,jft300m'
  assert first[:6] == [name, 'v3:16x16', 'no', '20.0', '15.5', '-']
  assert second[:4] == ['accumulation_steps=4', 'v3:16x16', 'yes', '8.0']
  assert third[:4] == [name, 'v5e:4x4', 'yes', '8.0']
  assert 'Note.' in lines


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'error': 'it broke'}, 'it broke'),
    ({'search_ended': 'no time'}, 'no time'),
  ],
)
def test_what_went_wrong_is_shown(changes, words):
  found = {**_figures(topology=None), **changes}
  assert words in render.page(found)
  assert words in render.table([found, found])

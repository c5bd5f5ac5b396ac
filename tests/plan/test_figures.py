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
from vit_jax.workdir import ledger

GIB = compilers.GIB
# The keys that `--json` promises.
REQUIRED = (
  *('config', 'topology', 'devices', 'params', 'forward_gmacs'),
  *('total_exaflops', 'total_steps', 'hbm_gib', 'hbm_usable_gib', 'fits'),
  *('step_ms', 'images_per_sec_per_core', 'mfu', 'core_days'),
  *('core_days_raw', 'core_days_range', 'paper_core_days'),
)
NAME = 'configs/pretrain.py:ViT-H/14,jft300m'


def _figures(topology='v3:16x16', temporaries=5, correction=1.0):
  """Three quarters of 0.25 s are products, a quarter is a copy."""
  config = pretrain.get_config(NAME.partition(':')[2])
  config.model.scan = True  # One block is traced for all.
  config = analysis.resolve(config, 'tpu')
  if not topology:
    return figures.of_run(NAME, config)
  target = devices.parse(topology)
  made = estimate.Estimate(
    [
      estimate.Row('fusion.1', 'matmul', 6, 3 / 16),
      estimate.Row('copy.1', 'copies', 1, 1 / 16),
    ],
    assumptions=['A loop.'],
  )
  made.uncovered['sort'] = 2**20
  asked = temporaries == 5
  compiled = compilers.Compiled(
    compilers.Memory(GIB, 2 * GIB, 0, 2**20, temporaries=temporaries * GIB),
    target.chip.hbm_usable_bytes,
    made if asked else None,
    9.0 if asked else None,
  )
  return figures.of_run(NAME, config, target, compiled, correction)


def test_figures_of_a_run():
  found = _figures(correction=0.8)
  assert set(REQUIRED) <= set(found)
  json.dumps(found)
  days = 1_035_644 * 0.25 / 86400
  operations = 6 * found['forward_gmacs'] * 1e9 * 4096
  expected = {
    'topology': 'v3:16x16',
    'devices': 512,
    'cores': 512,
    'hbm_gib': 8 + 1 / 1024,
    'fits': True,
    'step_ms': 250,
    'images_per_sec': 4096 / 0.25,
    # Uncorrected: 4096 images on 512 cores in a quarter second.
    'images_per_sec_per_core': 32,
    'mfu': operations / 0.25 / (512 * 61.6e12),
    'wall_days': days / 0.8,
    'core_days': 512 * days / 0.8,
    'core_days_raw': 512 * days,
    'core_days_range': [512 * days / 1.05, 512 * days / 0.59],
    'paper_core_days': 2500,
  }
  for name, value in expected.items():
    same = isinstance(value, str)
    assert found[name] == (value if same else pytest.approx(value)), name
  assert found['hbm']['temporaries'] == 5
  assert found['shares']['matmul'] == 0.75
  said = ' '.join(found['assumptions'])
  for words in ('by 0.8', 'A loop.', 'sort (1 MiB)', '0.6 of the links'):
    assert words in said


def test_gpus_have_days_but_no_core_days():
  found = _figures('h100x8')
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
  assert f'{found["params"]:,}' in page
  assert 'None' not in page


def test_a_page_and_a_table_show_the_figures():
  fix = _figures() | {'changes': {'accumulation_steps': 4}}
  small = _figures(temporaries=17) | {'fix': fix}
  assert (small['fits'], small['step_ms']) == (False, None)
  page = render.page(small)
  for words in (
    'at least 20.00 GiB',
    '15.48 are usable',
    'With --config.accumulation_steps=4 the run fits',
    '2,500',
  ):
    assert words in page
  lines = render.table([small, _figures('v5e:4x4')], 'Note.')
  rows = [line.split() for line in lines.splitlines()[:4]]
  assert [row[:4] for row in rows] == [
    ['config', 'topology', 'fits', 'GiB'],
    [NAME, 'v3:16x16', 'no', '20.00'],
    ['--config.accumulation_steps=4', 'v3:16x16', 'yes', '8.00'],
    [NAME, 'v5e:4x4', 'yes', '8.00'],
  ]
  assert 'Note.' in lines


@pytest.mark.parametrize('key', ['error', 'search_ended'])
def test_what_went_wrong_is_shown(key):
  found = _figures(topology=None) | {key: 'it broke'}
  assert 'it broke' in render.page(found)
  assert 'it broke' in render.table([found, found])


def test_a_ledger_says_how_far_off_plans_were(tmp_path):
  path = ledger.checked(tmp_path / 'ledger')
  lines = [
    dict(what=what, config=config, device=device, **times)
    for what, config, device, *known in (
      ('run', 'a', 'v3', 100, 900),
      ('run', 'b', 'v3', 100, 110),
      ('run', 'c', 'v3', 100, 120),
      ('run', 'a', 'v3', 100, 200),  # Only the newest of a directory counts.
      ('run', 'd', 'v5e', 100, 900),
      ('run', 'e', 'v3', None, 900),
      ('plan', 'f', 'v3', 100, None),
    )
    for times in [
      dict(zip(('predicted_ms', 'measured_ms'), known, strict=True))
    ]
  ]
  found = _figures()
  figures.add_ledger(found, path, lines)
  assert (found['ledger_runs'], found['ledger_ratio']) == (3, [1.1, 1.2, 2.0])
  assert found['core_days'] == found['core_days_raw']  # The user's choice.
  page = ' '.join(render.page(found).split())
  assert '1.1 to 2 times' in page
  # What fits is what runs.
  small = _figures(temporaries=17) | {'fix': _figures('v5p:2x2x1')}
  figures.add_ledger(small, path, lines)
  for one in (small, small['fix']):
    assert (one['ledger_runs'], one['ledger_ratio']) == (0, None)
  without = _figures(topology=None)
  figures.add_ledger(without, path, lines)
  assert without['ledger_runs'] is None
  first, second = ledger.read(path)
  assert (first['predicted_ms'], first['measured_ms']) == (250, None)
  assert (first['config'], first['device'], first['devices']) == (
    NAME,
    'v3',
    512,
  )
  assert second['device'] == 'v5p'

"""Guards: Figure 12 is drawn from files, which a separate process measures."""

import types

import pytest

from vit_jax.inference_speed import networks, store
from vit_jax.paper.items import speed_items
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Claim, Picture
from vit_jax.paper.runs import Results

ENTRIES = (
  store.Entry('ViT-B/32', 24, 2000.0, 8, 400),
  store.Entry('Axial-ViT-B/32', 24, 1000.0, 8, 200),
)


MINI = Results([], {}, comparable=False)
SIZE = len(networks.pairs((), (), 'mini'))


def _pictures(section):
  return [block for block in section.blocks if isinstance(block, Picture)]


def _answers(section):
  return [block.answer for block in section.blocks if isinstance(block, Claim)]


def _write(path, **settings):
  defaults = dict(device='cpu', scale='mini', unit='device', memory_bytes=2**30)
  found = store.Measured(
    store.Settings(**defaults | {'dtype': 'float32'} | settings)
  )
  for entry in ENTRIES:
    found = store.add(path, found, entry)


def test_each_measurement_file_becomes_a_figure_12(tmp_path):
  folder = tmp_path / 'measured'
  _write(folder / 'figure12.json')
  _write(
    folder / 'figure12_v3.json',
    device='TPU v3 TensorCore',
    unit='core',
    correction=0.85,
  )
  section = speed_items.figure12().render(MINI, tmp_path / 'figures')
  here, tpu = _pictures(section)
  # Each device is asked; two models are not enough for an answer.
  assert _answers(section) == ['missing'] * 6
  assert here.stem == 'figures/figure12'
  assert here.title.endswith('input size: cpu')
  assert 'Speed is measured' in here.caption
  assert 'at most 1.00 GiB' in here.caption
  assert 'In miniature' in here.caption
  assert tpu.stem == 'figures/figure12_v3'
  assert tpu.title.endswith('input size: TPU v3 TensorCore')
  assert 'estimate, times 0.85' in tpu.caption
  assert page_parts.status(section).word == 'partly there'
  assert page_parts.status(section).details == (
    f'0 of 6 claims, 2 of {SIZE} measurements'
  )
  for name in ('figure12', 'figure12_v3'):
    assert (tmp_path / 'figures' / f'{name}.png').exists()
    rows = (tmp_path / 'figures' / f'{name}.csv').read_text().split('\n')
    assert rows[1:-1] == [
      'ours,left,ViT-B/32,,24,2000.0,,1,',
      'ours,right,ViT-B/32,,24,400.0,,1,',
    ]


@pytest.mark.parametrize(
  'scale, platform, expected',
  [
    ('mini', 'cpu', ['--mini', '--to=measured/figure12.json']),
    ('paper', 'gpu', ['--to=measured/figure12.json']),
    ('paper', 'cpu', ['--device=v3', '--to=measured/figure12_v3.json']),
  ],
)
def test_speed_is_measured_in_another_process(
  monkeypatch, scale, platform, expected
):
  ran = []

  def run(command, **options):
    ran.append(command[2:])
    return types.SimpleNamespace(returncode=code)

  monkeypatch.setattr(speed_items.subprocess, 'run', run)
  monkeypatch.setattr(speed_items, '_platform', lambda: platform)
  code = 0
  measure = speed_items.figure12().measure
  measure(scale, speed_items.pathlib.Path('measured'))
  assert ran == [['vit_jax.inference_speed', *expected]]
  code = 3
  with pytest.raises(ValueError, match=r"'--to=a b/.*' ended with exit code 3"):
    measure(scale, speed_items.pathlib.Path('a b'))

"""Guards: Figure 12 is drawn from files, which a separate process measures."""

import shlex
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
PAPER = Results([], {})
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


def test_the_item_needs_no_runs():
  item = speed_items.figure12()
  assert (item.name, item.nodes) == ('figure12', ())


def test_without_measurements_the_figure_is_empty_and_a_note_has_the_command(
  tmp_path,
):
  tmp_path /= 'a b'
  section = speed_items.figure12().render(MINI, tmp_path / 'figures')
  [note] = section.missing
  # Five models at five sizes, and three axial ones at one.
  assert section.measured == (0, SIZE)
  assert page_parts.status(section).word == 'missing'
  # At this scale, the models are miniatures on every device.
  assert 'python -m vit_jax.inference_speed --mini --to=' in note
  assert str(tmp_path / 'measured' / 'figure12.json') in note
  last = shlex.split(note)[-1]
  assert last.startswith(f'--to={tmp_path}/measured/')
  assert [block.stem for block in _pictures(section)] == ['figures/figure12']
  assert _answers(section) == ['missing'] * 3
  rows = (tmp_path / 'figures' / 'figure12.csv').read_text().split('\n')
  assert len(rows) == 2  # Only the header, and the end of its line.


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


def test_the_platform_is_the_default_of_jax():
  assert speed_items._platform() == 'cpu'


@pytest.mark.parametrize(
  ('code', 'out', 'err'), [(1, '', 'a\nno chip'), (0, '', 'no chip')]
)
def test_without_a_device_the_error_gives_the_reason(
  monkeypatch, code, out, err
):
  monkeypatch.setattr(
    speed_items.subprocess,
    'run',
    lambda *args, **options: types.SimpleNamespace(
      returncode=code, stdout=out, stderr=err
    ),
  )
  with pytest.raises(ValueError, match=rf'\(exit code {code}\): no chip End'):
    speed_items._platform()


def test_files_of_the_other_scale_are_left_out(tmp_path):
  folder = tmp_path / 'measured'
  _write(folder / 'figure12.json', scale='mini')
  _write(folder / 'figure12_v3.json', scale='paper')
  for results, stem in ((MINI, 'figure12'), (PAPER, 'figure12_v3')):
    section = speed_items.figure12().render(results, tmp_path / 'figures')
    [picture] = _pictures(section)
    assert picture.stem == f'figures/{stem}'
    assert ('In miniature' in picture.caption) == (results is MINI)
  # The paper does not have the size 24 px.
  total = len(networks.pairs((), (), 'paper'))
  assert speed_items.progress('paper', folder) == (0, total)
  assert speed_items.progress('mini', folder) == (2, SIZE)


def test_the_figure_is_complete_if_all_pairs_are_measured(tmp_path):
  path = tmp_path / 'measured' / 'figure12.json'
  settings = store.Settings('cpu', 'mini', 'device', 1, 'float32')
  found = store.Measured(settings)
  for model, size in networks.pairs((), (), 'mini'):
    found = store.add(path, found, store.Entry(model, size, 1.0, 8, 8))
  section = speed_items.figure12().render(MINI, tmp_path / 'figures')
  assert page_parts.status(section).word == 'complete'
  # All models are equally fast, at all sizes.
  assert _answers(section) == ['seen once', 'not seen', 'not seen']

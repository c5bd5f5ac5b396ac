"""Guards: the benchmark commands' help, messages, tables and JSON."""

import json
import pathlib

import pytest

pytestmark = pytest.mark.gate

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = sorted(
  path.stem
  for path in (ROOT / 'benchmarks').glob('*.py')
  if path.stem not in ('__init__', 'report')
)

_TINY = [
  '--config=configs/pretrain.py:ViT-Ti/16,imagenet2012',
  *('--config.image_size=(32, 32)', '--config.model.depth=1'),
  *('--config.model.width=12', '--config.model.mlp_dim=24'),
  *('--config.data.batch_size=8', '--rounds=1'),
  *('--config.mesh.data=2', '--config.mesh.fsdp=1'),
]


@pytest.mark.parametrize('name', PROGRAMS)
def test_help(command, name):
  done = command(f'benchmarks.{name}', '--help')
  assert done.returncode == 0
  assert f'python -m benchmarks.{name}' in done.stdout
  assert '--json: File for the results' in done.stdout
  assert '--rounds: ' in done.stdout


def test_train_step(command):
  words = (*_TINY, '--steps=1', '--against=plain', '--peak_tflops=1')
  done = command('benchmarks.train_step', *words)
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert list(found) == ['benchmark', 'setting', 'environment', 'results']
  assert found['benchmark'] == 'train_step'
  assert found['setting']['image_size'] == [32, 32]
  assert found['setting']['config']['model']['depth'] == 1
  assert found['environment']['device_kind'] == 'cpu'
  assert list(found['results']) == ['config', 'plain']
  ours, plain = found['results'].values()
  for result in (ours, plain):
    rate = result['images_per_sec']
    assert result['batch_size'] == 8
    assert rate == pytest.approx(8000 / result['step_ms']['median'])
    assert result['images_per_sec_per_device'] == pytest.approx(rate / 2)
    assert result['ratio'] == pytest.approx(ours['images_per_sec'] / rate)
    assert result['compile_sec'] > 0
    # These are the parameters, Adam's two moments and the gradient in float32.
    assert result['memory_gib'] * 2**30 > 16 * result['params']
  # The model has 4 patches of 768 values, D = 12, 5 tokens, an MLP of 24, and a
  # hidden layer before the 1000 classes.
  macs = 4 * 768 * 12 + 5 * (4 * 144 + 2 * 12 * 24) + 2 * 25 * 12 + 144 + 12_000
  assert ours['params'] == plain['params']
  assert ours['mfu'] == pytest.approx(
    ours['images_per_sec'] * 6 * macs / (2 * 1e12)
  )
  head, first, _ = done.stderr.strip().splitlines()[-3:]
  assert head.split()[:5] == ['ms', 'spread', 'images/s', '/device', 'MFU']
  assert first.split()[:2] == ['config', f'{ours["step_ms"]["median"]:.1f}']


def test_json_file(command, tmp_path):
  done = command(
    'benchmarks.attention',
    *('--tokens=3,5', '--batch=1', '--heads=1', '--head_width=4'),
    *('--rounds=2', '--repeats=1', '--implementations=flax,jax.cudnn'),
    f'--json={tmp_path}/new/found.json',
  )
  assert done.returncode == 0, done.stderr
  assert not done.stdout
  found = json.loads((tmp_path / 'new' / 'found.json').read_text())
  assert list(found['results']) == ['flax, 3 tokens', 'flax, 5 tokens']
  assert list(found['setting']['left_out']) == [
    'jax.cudnn, 3 tokens',
    'jax.cudnn, 5 tokens',
  ]


@pytest.mark.parametrize(
  'words, message',
  [
    (['train_step'], '--config is missing'),
    (['train_step', *_TINY, '--against=model.scam=true'], "no key 'scam'"),
    (['attention', '--tokens=0'], '--tokens=0: expected positive numbers'),
    (['input', '--images=1', '--setting=fast'], "'fast' must be one of"),
  ],
  ids=['no config', 'wrong key', 'wrong tokens', 'wrong setting'],
)
def test_errors(command, words, message):
  program, *flags = words
  done = command(f'benchmarks.{program}', *flags)
  assert done.returncode == 1
  last = done.stderr.strip().splitlines()[-1]
  assert last.startswith('error: ')
  assert message in last
  assert not done.stdout

"""Guards: the benchmark commands' help, messages, tables and JSON."""

import json

import pytest

from tests.commands import write_program

pytestmark = pytest.mark.gate

_TINY = [
  '--config=configs/pretrain.py:ViT-Ti/16,imagenet2012',
  *('--config.image_size=(32, 32)', '--config.model.depth=1'),
  *('--config.model.width=12', '--config.model.mlp_dim=24'),
  *('--config.data.batch_size=8', '--rounds=1'),
  *('--config.mesh.data=2', '--config.mesh.fsdp=1'),
]


def _results(done, *names):
  """Returns the results of a command, which must be `names`."""
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert list(found) == ['benchmark', 'setting', 'environment', 'results']
  assert list(found['results']) == list(names)
  return found, *found['results'].values()


def test_train_step(command):
  words = (*_TINY, '--steps=1', '--against=same')
  done = command('benchmarks.train_step', *words)
  found, ours, same = _results(done, 'config', 'same')
  assert found['setting']['steps'] == 1
  assert found['setting']['config']['model']['depth'] == 1
  for result in (ours, same):
    rate = result['images_per_sec']
    assert (result['batch_size'], result['device_kind']) == (8, 'cpu')
    assert rate == pytest.approx(8000 / result['step_ms']['median'])
    assert result['images_per_sec_per_device'] == pytest.approx(rate / 2)
    assert result['ratio'] == pytest.approx(ours['images_per_sec'] / rate)
    assert result['compile_sec'] > 0
    # These are the parameters, Adam's two moments and the gradient in float32.
    assert result['memory_gib'] * 2**30 > 16 * result['params']
  head, first, _ = done.stderr.strip().splitlines()[-3:]
  # A CPU's MFU is not known.
  titles = ['batch', 'ms', 'spread', 'images/s', '/device', 'times']
  assert head.split()[:6] == titles
  assert first.split()[2] == f'{ours["step_ms"]["median"]:.1f}'


def _fake_torch(folder, params):
  """Returns an interpreter that answers for timm."""
  found = {
    'seconds': [0.25, 0.5, 0.4],
    'params': params,
    'compile_sec': 1.5,
    'peak_gib': 17.25,
    'device_kind': 'NVIDIA H100 PCIe',
    'versions': {},
  }
  text = f"[ $1 = -c ] || echo '{json.dumps(found)}'"
  return write_program(folder / 'python', text)


def _compare(command, folder, params):
  return command(
    *('benchmarks.gpu_vs_timm', '--models=ViT-Ti/16', '--device=cpu'),
    *('--image_size=32', '--batch_size=1', '--steps=1', '--rounds=1'),
    f'--torch_python={_fake_torch(folder, params)}',
  )


@pytest.mark.parametrize(
  'equal',
  # The other case starts the same process again.
  [True, pytest.param(False, marks=pytest.mark.slow)],
)
def test_gpu_vs_timm(command, tmp_path, equal):
  # The sum is: patches, class token, 5 positions, 12 blocks, last norm, head.
  block = 4 * (192**2 + 192) + 2 * 192 * 768 + 768 + 192 + 4 * 192
  params = 768 * 192 + 192 + 192 + 5 * 192 + 12 * block + 2 * 192 + 193 * 1000
  if not equal:
    done = _compare(command, tmp_path, 7)
    assert done.returncode == 1
    assert f"ours': {params}, 'ViT-Ti/16 timm': 7}}" in done.stderr
    return
  done = _compare(command, tmp_path, params)
  _, ours, timm = _results(done, 'ViT-Ti/16 ours', 'ViT-Ti/16 timm')
  assert ours['params'] == params
  assert timm['step_ms']['values'] == [250, 500, 400]
  assert timm['images_per_sec'] == 1 / 0.4
  macs = timm['forward_macs']
  assert timm['mfu'] == pytest.approx(2.5 * 6 * macs / 756e12)
  assert timm['ratio'] == pytest.approx(400 / ours['step_ms']['median'])
  assert '400.0' in done.stderr


@pytest.mark.parametrize(
  'words, message',
  [
    (['train_step'], '--config is missing'),
    (['train_step', *_TINY, '--against=model.scam=true'], 'model.scam=true'),
    (['gpu_vs_timm', '--torch_python=/nowhere'], '/nowhere'),
  ],
)
def test_errors(command, words, message):
  program, *flags = words
  done = command(f'benchmarks.{program}', *flags)
  assert done.returncode == 1
  last = done.stderr.strip().splitlines()[-1]
  assert last.startswith('error: ')
  assert message in last
  assert not done.stdout

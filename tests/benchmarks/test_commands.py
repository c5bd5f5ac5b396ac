"""Guards: the benchmark commands' help, messages, tables and JSON."""

import json

import pytest

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
  assert head.split()[:5] == ['ms', 'spread', 'images/s', '/device', 'times']
  assert first.split()[:2] == ['config', f'{ours["step_ms"]["median"]:.1f}']


@pytest.mark.parametrize(
  'words, message',
  [
    (['train_step'], '--config is missing'),
    (['train_step', *_TINY, '--against=model.scam=true'], 'model.scam=true'),
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

"""Guards: the command reports and refuses the right things, without libtpu."""

import json

import pytest

from vit_jax.plan import devices

B16 = '--config=configs/pretrain.py:ViT-B/16,imagenet2012'
R50 = 'configs/pretrain.py:BiT-R50x1,jft300m'


@pytest.fixture
def plan(command):
  return lambda *words: command('vit_jax.plan', *words)


@pytest.mark.skipif(
  devices.have_compiler(),
  reason='says what is missing where the TPU compiler is not installed',
)
def test_json_without_the_compiler(plan):
  result = plan(
    *(B16, '--config.epochs=30.0', '--topology=v3:16x16,auto:v5e', '--json')
  )
  assert result.returncode == 0, result.stderr
  (line,) = result.stdout.splitlines()
  found, other = json.loads(line)
  assert found['config'] == 'configs/pretrain.py:ViT-B/16,imagenet2012'
  assert (found['topology'], found['devices']) == ('v3:16x16', 512)
  assert found['total_steps'] == 30 * 1_281_167 // 4096
  assert found['params'] == 87_158_248
  assert found['hbm_gib'] is found['step_ms'] is other['topology'] is None
  page = plan(B16, '--topology=v3:16x16').stdout
  assert 'pip install "vit-paper-jax[plan]"' in ' '.join(page.split())


def test_stages_are_runs_and_overrides_are_for_all_configs(plan):
  result = plan('--config=configs/quickstart.py', '--json')
  assert result.returncode == 0, result.stderr
  names = [one['config'] for one in json.loads(result.stdout)]
  assert len(names) > 1
  assert names[0].startswith('configs/quickstart.py ')
  other = 'configs/pretrain.py:ViT-S/16,jft300m'
  words = ('--config.data.batch_size=256', '--config.model.depth=1')
  found = json.loads(plan(B16, f'--also={other}', *words, '--json').stdout)
  assert [one['batch_size'] for one in found] == [256, 256]
  assert found[1]['config'] == other


@pytest.mark.parametrize(
  'words, message',
  [
    ((B16, '--topology=v3:3x3'), 'v3:3x3'),
    ((B16, '--topology=auto:v9'), 'v2, v3'),
    ((B16, '--topology=v3:2x2,cpu'), 'cpu'),
    ((B16, '--correction=inf'), '--correction=inf'),
    ((B16, '--also=nope'), 'nope'),
    ((B16, '--ledger=nowhere/ledger'), 'nowhere/ledger'),
    ((B16, '--also=configs/quickstart.py', '--config.seed=3'), 'quickstart'),
    ((B16, '--config.accumulation_steps=0'), 'accumulation_steps=0'),
    ((B16, '--config.mesh.data=3', '--topology=v3:2x2'), 'mesh.data=3'),
    # A ResNet has no depth.
    (
      (B16, f'--also={R50}', '--config.model.depth=1'),
      'BiT-R50x1',
    ),
    ((), '--config is missing'),
  ],
)
def test_what_is_wrong_is_one_message_before_any_work(plan, words, message):
  result = plan(*words)
  assert (result.returncode, result.stdout) == (1, '')
  assert result.stderr.startswith('error: ')
  assert message in result.stderr

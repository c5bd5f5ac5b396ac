"""Guards: errors in a command line are clear, before its flags are parsed."""

import pathlib
import shlex
import subprocess
import sys

import pytest
from absl import flags
from ml_collections import config_flags

from vit_jax import config as config_lib
from vit_jax.runtime import command_line

QUICKSTART = '--config=configs/quickstart.py'
PRETRAIN = QUICKSTART + ':pretrain'


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
  monkeypatch.chdir(pathlib.Path(__file__).parents[2])


def _parse(*words):
  values = flags.FlagValues()
  argv = ['program', *words]
  config_flags.DEFINE_config_file('config', flag_values=values, sys_argv=argv)
  command_line.parse_flags(values, argv)
  return values.config


@pytest.mark.parametrize(
  'words, key, value',
  [
    ([PRETRAIN, '--config.data.batch_size=8'], 'data.batch_size', 8),
    ([PRETRAIN, '-config.data.batch_size', '8'], 'data.batch_size', 8),
    ([PRETRAIN, '--noconfig.log.tensorboard'], 'log.tensorboard', False),
    (['-config', 'quickstart', '--config.stages.scratch.seed=3'],)
    + ('stages.scratch.seed', 3),
  ],
)
def test_overrides_are_applied(words, key, value):
  assert config_lib.flatten(_parse(*words))[key] == value


def test_a_wrong_key_in_a_file_of_flags_is_named(tmp_path):
  file = tmp_path / 'flags.txt'
  file.write_text('--config.model.widht=3')
  with pytest.raises(ValueError, match=r'--config\.model\.widht is not a key'):
    _parse(PRETRAIN, f'--flagfile={file}')


def test_an_error_of_a_config_file_is_no_wrong_key(tmp_path):
  file = tmp_path / 'config.py'
  file.write_text("get_config = lambda: {}['sizes']\n")
  with pytest.raises(RuntimeError, match=r'config\.py failed') as error:
    _parse(f'--config={file}')
  assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize(
  'words, parts',
  [
    ([PRETRAIN, '--config.model.widht=3'], ['widht', 'model.width']),
    ([PRETRAIN, '--config.modle.width', '3'], ['modle', 'model.width']),
    ([PRETRAIN, '--noconfig.qwerty'], ['qwerty', '--print_config']),
    ([PRETRAIN, '--config.seed.x=3'], ['seed.x']),
    ([PRETRAIN, '--config.seed=x'], ['config.seed=x']),
    ([QUICKSTART + ':scrach'], ['scrach', "['pretrain', 'finetune', 'scr"]),
    (['--config=configs/finetune.py:ViT-B/16'], ['lacks DATASET', 'Usage']),
    (['--config', 'pretrian.py:a'], ['pretrian.py:a', 'mean pretrain?']),
  ],
)
def test_errors_name_the_key_and_the_choices(words, parts):
  with pytest.raises(ValueError, match='--config') as error:
    _parse(*words)
  assert '\n' not in str(error.value)
  for part in parts:
    assert part in str(error.value)


@pytest.mark.parametrize(
  'text, size',
  [('384', (384, 384)), ('384x512', (384, 512)), (None, None)],
)
def test_sizes(text, size):
  assert command_line.parse_size('image_size', text) == size


@pytest.mark.parametrize('text', ['0', 'x', '3x', '1x2x3', '-3', '1.5'])
def test_invalid_sizes_are_refused(text):
  with pytest.raises(ValueError, match=f'--resolution={text}: expected a'):
    command_line.parse_size('resolution', text)


def test_a_reader_that_has_read_enough_is_no_error():
  program = (
    'from vit_jax.runtime import command_line\n'
    'command_line.run(lambda: [print(i) for i in range(10**5)])\n'
  )
  words = f'{shlex.join([sys.executable, "-c", program])} | head -n 1'
  done = subprocess.run(
    ['bash', '-o', 'pipefail', '-c', words], capture_output=True, text=True
  )
  assert (done.returncode, done.stdout, done.stderr) == (0, '0\n', '')

"""Guards: errors in a command line are clear, before its flags are parsed."""

import pathlib
import shlex
import sys

import pytest
from absl import flags
from ml_collections import config_flags

from tests import commands
from vit_jax import config as config_lib
from vit_jax.runtime import command_line

QUICKSTART = '--config=configs/quickstart.py'
PRETRAIN = QUICKSTART + ':pretrain'
FINETUNE = '--config=configs/finetune.py:ViT-B/16,pets'


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
    ([PRETRAIN, '--config.image_size=(32, 48)'], 'image_size', (32, 48)),
    ([PRETRAIN, '--config.schedule.peak=1'], 'schedule.peak', 1.0),
    # A number or a word.
    ([PRETRAIN, '--config.checkpoint.every=500'], 'checkpoint.every', 500),
    ([PRETRAIN, '--config.checkpoint.every=auto'], 'checkpoint.every', 'auto'),
    # Values that the file leaves open.
    ([FINETUNE, '--config.model.width=64'], 'model.width', 64),
    ([FINETUNE, '--config.epochs=3'], 'epochs', 3.0),
    ([FINETUNE, '--config.init.checkpoint='], 'init.checkpoint', ''),
    ([FINETUNE, '--config.init.checkpoint=a=b'], 'init.checkpoint', 'a=b'),
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
    ([PRETRAIN, '--config.seed=1.5'], ['config.seed=1.5']),
    (['--config.seed=3', PRETRAIN], ['--config.seed=3 in argv before']),
    ([PRETRAIN, '--config.image_size=(8 8)'], ['image_size=(8 8)']),
    ([PRETRAIN, '--config.log=3'], ["'3' as a ConfigDict"]),
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
  done = commands.run_new('bash', '-o', 'pipefail', '-c', words)
  assert (done.stdout, done.stderr) == ('0\n', '')

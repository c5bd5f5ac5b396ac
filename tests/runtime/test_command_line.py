"""Guards: errors in a command line are clear, before its flags are parsed."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from vit_jax.runtime import command_line

QUICKSTART = '--config=configs/quickstart.py'
PRETRAIN = QUICKSTART + ':pretrain'


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
  monkeypatch.chdir(pathlib.Path(__file__).parents[2])


def test_overrides_are_checked_but_not_applied():
  config = command_line.read_config([PRETRAIN, '--config.seed=3'])
  assert config.model.width == 96
  assert config.seed == 0
  assert command_line.read_config(['--workdir=runs']) is None


@pytest.mark.parametrize(
  'words',
  [
    [PRETRAIN, '--config.data.batch_size=8', '--config.init.checkpoint='],
    [PRETRAIN, '-config.data.batch_size', '8', '--workdir', 'config.x'],
    [PRETRAIN, '--config.log.tensorboard', '--noconfig.log.tensorboard'],
    [PRETRAIN, '--config.evals.test.every=3', '--config.image_size=(8, 8)'],
    ['--config', 'configs/quickstart.py:pretrain', '--config.seed=3'],
    ['-config', 'configs/quickstart.py', '--config.stages.scratch.seed=3'],
  ],
)
def test_existing_keys_are_accepted(words):
  assert command_line.read_config(words) is not None


@pytest.mark.parametrize(
  'words, message',
  [
    (
      [PRETRAIN, '--config.model.widht=3'],
      '--config.model.widht is not a key of this config. Did you mean'
      ' model.width? The keys of model are: attention,'
      ' attention_implementation, blocks,',
    ),
    # The name is right, but in another section.
    (
      [PRETRAIN, '--config.modle.width', '3'],
      'Did you mean model.width? The keys of this config are: accumulation_',
    ),
    (
      [PRETRAIN, '--config.batch_size=3'],
      'mean data.batch_size or evals.test.batch_size? The keys of this',
    ),
    (
      [QUICKSTART, '--config.seed=3'],
      '--config.seed is not a key of this config. Did you mean'
      ' stages.finetune.seed or stages.pretrain.seed or stages.scratch.seed?'
      ' The keys of this config are: order, stages.',
    ),
    (
      [PRETRAIN, '--noconfig.qwerty'],
      '--config.qwerty is not a key of this config. The keys of this config',
    ),
    (
      [PRETRAIN, '--config.seed.x=3'],
      '--config.seed.x: seed is a value (0), not a section.',
    ),
    (
      [QUICKSTART + ':scrach'],
      "--config=configs/quickstart.py:scrach: Unknown stage 'scrach'; choose"
      " one of ['pretrain', 'finetune', 'scratch'], or none for all three.",
    ),
    (
      ['--config=configs/finetune.py:ViT-B/16'],
      "The config argument 'ViT-B/16' lacks DATASET. Usage: configs/finetune",
    ),
    (
      ['--config=configs/pretrain.py:ViT-B/16,digits,epochs=x'],
      "--config=configs/pretrain.py:ViT-B/16,digits,epochs=x: epochs='x' is"
      ' not of type float. Usage: configs/pretrain',
    ),
  ],
)
def test_errors_list_the_choices(words, message):
  with pytest.raises(ValueError, match=re.escape(message)) as error:
    command_line.read_config(words)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'spec, message',
  [
    (
      'mine/nope.py:ViT-B/16',
      "--config=mine/nope.py:ViT-B/16: there is no file 'mine/nope.py'. mine"
      ' holds a.py, b.py.',
    ),
    ('a.py', "there is no file 'a.py'. configs holds c.py."),
    ('', "there is no file ''. configs holds c.py."),
    ('nowhere/x.py', "there is no file 'nowhere/x.py'. vit_jax comes with"),
  ],
)
def test_a_missing_file(tmp_path, monkeypatch, spec, message):
  for file in ('mine/a.py', 'mine/b.py', 'mine/__init__.py', 'configs/c.py'):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
  monkeypatch.chdir(tmp_path)
  for words in ([f'--config={spec}'], ['--config', spec]):
    with pytest.raises(ValueError, match=re.escape(message)):
      command_line.read_config(words)


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

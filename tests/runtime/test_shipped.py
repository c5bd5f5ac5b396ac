"""Guards: files that come with the code are found from any folder.

The user's own files of the same name come first.
"""

import pathlib
import re

import pytest

from vit_jax.runtime import shipped
from vit_jax.sweep import Run, reading

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_another_folder(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
  'name', ['launch/Dockerfile', 'launch/worker/run.sh', 'configs/sweeps']
)
def test_paths_lead_into_the_checkout(name):
  assert shipped.path(name) == ROOT / name


@pytest.mark.parametrize('name', ['launch/nope', 'setup.py', 'vit_jax/main.py'])
def test_files_that_are_not_shipped_are_errors(name):
  with pytest.raises(FileNotFoundError, match=f'{name} does not come with'):
    shipped.path(name)


@pytest.mark.parametrize(
  'flag, name, file',
  [
    ('config', 'pretrain', 'configs/pretrain.py'),
    ('config', 'pretrain.py', 'configs/pretrain.py'),
    ('config', 'configs/pretrain', 'configs/pretrain.py'),
    ('config', 'configs/pretrain.py', 'configs/pretrain.py'),
    ('also', 'mini', 'configs/mini.py'),
    ('sweep', 'digits', 'configs/sweeps/digits.py'),
    ('sweep', 'digits.py', 'configs/sweeps/digits.py'),
    ('sweep', 'sweeps/digits.py', 'configs/sweeps/digits.py'),
    ('sweep', 'configs/sweeps/digits.py', 'configs/sweeps/digits.py'),
  ],
)
@pytest.mark.parametrize('argument', ['', ':', ':ViT-B/16,folder:/a'])
def test_names(flag, name, file, argument):
  assert shipped.exists(flag, name + argument)
  assert shipped.find(flag, name + argument) == f'{ROOT / file}{argument}'


def test_an_existing_file_at_the_given_path_is_used(tmp_path):
  for name in ('pretrain', 'configs/pretrain.py', 'configs/mine.py'):
    assert shipped.find('config', 'pretrain') == str(
      ROOT / 'configs/pretrain.py'
    )
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert shipped.find('config', f'{name}:a') == f'{name}:a'
    if name == 'pretrain':
      file.unlink()
  # A folder of this name does not count.
  (tmp_path / 'pretrain').mkdir()
  assert shipped.find('config', 'pretrain') == str(ROOT / 'configs/pretrain.py')


def test_sweeps_and_their_runs():
  [study] = reading.load('digits:01').studies
  for run in (study.candidates[0], Run('r', 'finetune:ViT-B/16,pets')):
    changed = Run('r', run.config, {'init.checkpoint': 'x', 'seed': 3})
    assert reading.read_config(changed).seed == 3
  # The run keeps the given text, so that it is the same run on any machine.
  assert study.candidates[0].config.startswith('configs/finetune.py:')


@pytest.mark.parametrize(
  'flag, text, message',
  [
    (
      'config',
      'configs/quikstart.py:a',
      "--config=configs/quikstart.py:a: there is no file 'configs/quikstart.py'"
      '. Did you mean quickstart? vit_jax comes with features, finetune,'
      ' masked_patch, midi, mini, pretrain, quickstart, robustness, vtab.',
    ),
    # Similar files in the user's folder come first.
    (
      'also',
      'mine/fintune.py',
      "--also=mine/fintune.py: there is no file 'mine/fintune.py'. Did you mean"
      ' mine/finetune_2.py or finetune? mine holds finetune_2.py. vit_jax',
    ),
    (
      'sweep',
      'digit',
      "--sweep=digit: there is no file 'digit'. Did you mean digits?"
      ' vit_jax comes with digits, finetune, regularisation, reproduce.',
    ),
    # A config is not a sweep, and a sweep is not a config.
    ('config', 'configs/sweeps/digits.py', "no file 'configs/sweeps/digits.py"),
    ('sweep', 'configs/digits.py', "there is no file 'configs/digits.py'."),
    ('config', './pretrain.py', "no file './pretrain.py'. Did you mean pretr"),
    ('config', '', "--config=: there is no file ''. vit_jax comes with"),
    ('config', '__init__', "there is no file '__init__'. vit_jax comes"),
  ],
)
def test_the_error_for_a_missing_file_lists_the_shipped_files(
  tmp_path, flag, text, message
):
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine/finetune_2.py').touch()
  assert not shipped.exists(flag, text)
  with pytest.raises(ValueError, match=re.escape(message)):
    shipped.find(flag, text)

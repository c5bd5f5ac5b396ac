"""Guards: each list of near-duplicates goes to the task that it is about."""

import json

import pytest

from vit_jax.configs.sweeps import reproduce
from vit_jax.data import exclusion
from vit_jax.paper import clean, items
from vit_jax.paper.numbers import values
from vit_jax.runtime import command_line

TESTS = reproduce._TESTS


def write(path, spec, split='test', excluded=(1,)):
  path.parent.mkdir(parents=True, exist_ok=True)
  names = [f'{index}' for index in excluded]
  entry = {'examples': 9, 'excluded': [*excluded], 'names': names}
  content = {'kind': exclusion.KIND, 'dataset': spec, 'splits': {split: entry}}
  path.write_text(json.dumps(content))
  return path


@pytest.fixture
def folder(tmp_path):
  write(tmp_path / 'jft300m/exclude_test_1.json', 'tfds:cifar10')
  write(
    tmp_path / 'jft300m/exclude_test_2.json', 'tfds:imagenet2012', 'validation'
  )
  write(tmp_path / 'jft300m/exclude_test_3.json', 'tfds:food101')
  write(tmp_path / 'jft300m/exclude.json', 'tfds:cifar100')
  write(tmp_path / 'imagenet21k/exclude_test.json', 'tfds:oxford_iiit_pet')
  return tmp_path


def test_lists_go_to_the_task_of_their_data(folder):
  jft = folder / 'jft300m'
  assert clean.lists(str(folder), TESTS) == {
    (values.JFT, values.CIFAR10): f'{jft}/exclude_test_1.json',
    (values.JFT, values.IMAGENET): f'{jft}/exclude_test_2.json',
    (values.IMAGENET21K, values.PETS): (
      f'{folder}/imagenet21k/exclude_test.json'
    ),
  }


@pytest.mark.parametrize('spec', ['', 'tfds:food101'])
def test_a_folder_without_usable_lists_is_one_error(tmp_path, spec):
  if spec:
    write(tmp_path / 'jft300m/exclude_test.json', spec)
  with pytest.raises(ValueError, match='has no usable list') as caught:
    clean.lists(str(tmp_path), TESTS)
  message = str(caught.value)
  assert 'jft300m/exclude_test*.json or imagenet21k/' in message
  assert 'tfds:imagenet2012, tfds:cifar10' in message
  assert 'vit_jax.dedup --data=SPEC' in message
  assert (f'exclude_test.json is of {spec}' in message) == bool(spec)


def test_a_list_of_another_split_is_refused(tmp_path):
  write(tmp_path / 'jft300m/exclude_test.json', 'tfds:imagenet2012', 'test')
  with pytest.raises(ValueError, match="split 'test', but 'validation' is"):
    clean.lists(str(tmp_path), TESTS)


def test_two_lists_of_a_task_are_refused(folder):
  write(folder / 'jft300m/exclude_test_9.json', 'tfds:cifar10')
  with pytest.raises(ValueError, match=r'_1\.json and .*_9\.json are both of'):
    clean.lists(str(folder), TESTS)


def _configs(argument):
  """Returns run -> config, of all runs that an argument may start."""
  sweep = reproduce.get_sweep(argument)
  return {
    run.name: (run.config, dict(run.overrides))
    for study in sweep.studies
    for run in study.all_runs()
  }


def test_only_reported_runs_of_large_models_get_another_test(folder):
  names = 'table5+table6+near_duplicates'
  without = _configs(names)
  found = _configs(f'{names},clean={folder}')
  assert found.keys() == without.keys()
  changed = {
    name: config for name, (config, _) in found.items() if 'clean=' in config
  }
  assert {name.partition('/')[0] for name in changed} == {
    'ViT-L_16,JFT-300M,14-epochs-to-CIFAR-10',
    'ViT-L_16,JFT-300M,14-epochs-to-ImageNet',
    'ViT-L_16,ImageNet-21k-to-Oxford-IIIT-Pets',
  }
  assert not any('train=selection' in config for config in changed.values())
  for name in found.keys() - changed.keys():
    assert found[name] == without[name]
  path = folder / 'jft300m/exclude_test_2.json'
  [config, *_] = (c for n, c in changed.items() if 'to-ImageNet/' in n)
  config = command_line.read_config([f'--config={config}'])
  assert set(config.evals) == {'test', 'real', 'test_clean'}
  assert config.evals.test_clean.dataset == f'tfds:imagenet2012,exclude={path}'


def test_without_the_folder_the_item_has_the_runs_of_table_5():
  assert _configs('near_duplicates').items() <= _configs('table5').items()
  nodes = items.ITEMS['near_duplicates'].nodes
  assert {*nodes} <= {*items.ITEMS['table5'].nodes}
  assert len(nodes) == 10


def test_miniatures_have_no_lists(folder):
  for scale in ('mini', 'midi,data=folder:/photos'):
    with pytest.raises(ValueError, match='leave it out with scale=mi'):
      reproduce.get_sweep(f'table5,scale={scale},clean={folder}')

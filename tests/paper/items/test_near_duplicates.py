"""Guards: near-duplicates' item compares tests of the same runs.

And each list of near-duplicates goes to the task that it is about.
"""

import json

import pytest

from vit_jax.configs import finetune
from vit_jax.configs.sweeps import reproduce
from vit_jax.data import exclusion
from vit_jax.paper import numbers
from vit_jax.paper.items.beyond import near_duplicates
from vit_jax.paper.page import texts
from vit_jax.paper.runs import Results
from vit_jax.runtime import command_line
from vit_jax.sweep import Run, Study

ITEM = near_duplicates.ITEM
TESTS = {
  task: (finetune.TABLE_4[name].spec, finetune.TABLE_4[name].test)
  for task, name in reproduce.TASKS.items()
}
CIFAR10 = 'JFT-300M: CIFAR-10'
ALL, CLEAN = 'All test images', 'Without near-duplicates'


def test_accuracies_with_and_without_and_how_many(tmp_path):
  studies, finished = [], {}
  for node in ITEM.shown('paper'):
    listed = node.task == 'CIFAR-10'
    runs = [Run(f'{node.name}/{i}', 'configs/finetune.py') for i in range(2)]
    studies.append(Study(node.name, finals=runs))
    for seed, run in enumerate(runs):
      whole = 0.9 + 0.01 * seed
      finished[run.name] = {'test/accuracy': whole, 'test/count': 10_000}
      if listed:
        finished[run.name] |= {
          'test_clean/accuracy': whole - 0.02,
          'test_clean/count': 9_963,
        }
  section = ITEM.render(Results(studies, finished), tmp_path)
  shown = {
    place: texts.cell_text(table, *place).ours
    for table in section.blocks
    for place in table.cells
  }
  for column, text in (
    *((ALL, '90.50 ± 0.71'), (CLEAN, '88.50 ± 0.71')),
    # Of the same runs, so it does not vary.
    ('Difference', f'{texts.MINUS}2.00 ± 0.00'),
    *(('Left out', '37 ± 0'), ('Of', '10,000 ± 0')),
  ):
    assert shown[CIFAR10, column] == text
  assert shown['JFT-300M: ImageNet', CLEAN] == texts.DASH
  assert texts.status(section).word == 'complete'


# Lists. -----------------------------------------------------------------------


def _write(path, spec, split='test'):
  path.parent.mkdir(parents=True, exist_ok=True)
  entry = {'examples': 9, 'excluded': [1], 'names': ['1']}
  content = {'kind': exclusion.KIND, 'dataset': spec, 'splits': {split: entry}}
  path.write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path):
  jft = tmp_path / 'jft300m'
  _write(jft / 'exclude_test_1.json', 'tfds:cifar10')
  _write(jft / 'exclude_test_2.json', 'tfds:imagenet2012', 'validation')
  _write(jft / 'exclude_test_3.json', 'tfds:food101')
  _write(jft / 'exclude.json', 'tfds:cifar100')
  pets = tmp_path / 'imagenet21k/exclude_test.json'
  _write(pets, 'tfds:oxford_iiit_pet')
  return tmp_path


def test_lists_go_to_the_task_of_their_data(folder):
  jft, data = folder / 'jft300m', numbers
  assert near_duplicates.find_lists(str(folder), TESTS) == {
    (data.JFT, data.CIFAR10): f'{jft}/exclude_test_1.json',
    (data.JFT, data.IMAGENET): f'{jft}/exclude_test_2.json',
    (data.IMAGENET21K, data.PETS): f'{folder}/imagenet21k/exclude_test.json',
  }


@pytest.mark.parametrize(
  ('lists', 'message'),
  [
    ([], 'has no usable list: expected'),
    ([('tfds:food101', 'test')], 'exclude_test_0.json is of tfds:food101'),
    ([('tfds:imagenet2012', 'test')], "split 'test', but 'validation' is"),
    ([('tfds:cifar10', 'test')] * 2, r'_0\.json and .*_1\.json are both of'),
  ],
)
def test_unusable_lists_are_refused(tmp_path, lists, message):
  for i, of in enumerate(lists):
    _write(tmp_path / f'jft300m/exclude_test_{i}.json', *of)
  with pytest.raises(ValueError, match=message):
    near_duplicates.find_lists(str(tmp_path), TESTS)


def test_only_reported_runs_of_large_models_get_another_test(folder):
  def configs(argument):
    return {
      run.name: (run.config, dict(run.overrides))
      for study in reproduce.get_sweep(argument).studies
      for run in study.all_runs()
    }

  names = 'table5+table6+near_duplicates'
  without, found = configs(names), configs(f'{names},clean={folder}')
  changed = {
    name: found[name][0] for name in found if found[name] != without[name]
  }
  assert found.keys() == without.keys()
  assert {name.partition('/')[0] for name in changed} == {
    'ViT-L_16,JFT-300M,14-epochs-to-CIFAR-10',
    'ViT-L_16,JFT-300M,14-epochs-to-ImageNet',
    'ViT-L_16,ImageNet-21k-to-Oxford-IIIT-Pets',
  }
  assert not any('train=selection' in config for config in changed.values())
  [config, *_] = (c for name, c in changed.items() if 'to-ImageNet/' in name)
  evals = command_line.load_config(config).evals
  path = folder / 'jft300m/exclude_test_2.json'
  assert {*evals} == {'test', 'real', 'test_clean'}
  assert evals.test_clean.dataset == f'tfds:imagenet2012,exclude={path}'


@pytest.mark.parametrize('scale', ['mini', 'midi'])
def test_miniatures_have_no_lists(folder, tmp_path, scale):
  words = f'scale={scale},data=folder:/photos'
  with pytest.raises(ValueError, match=r'clean=.* not go with scale=mi'):
    reproduce.get_sweep(f'table5,{words},clean={folder}')
  assert not reproduce.get_sweep(f'near_duplicates,{words}').studies
  section = ITEM.render(Results([], {}, scale=scale), tmp_path)
  assert section.missing
  assert not section.blocks

"""Guards: configs accept lists of exclusions, and runs keep theirs."""

import pytest

from tests import run_files, tiny_run
from vit_jax import compare, data
from vit_jax.configs import finetune, pretrain
from vit_jax.data import exclusion


@pytest.mark.parametrize(
  'file, given, spec, split',
  [
    (finetune, 'cifar10', 'tfds:cifar10', 'test'),
    (pretrain, 'imagenet2012', 'tfds:imagenet2012', 'validation'),
    (pretrain, 'folder:/a,eval=val', 'folder:/a', 'val'),
  ],
)
def test_clean_adds_an_evaluation(file, given, spec, split):
  config = file.get_config(f'ViT-B/16,{given},exclude=/e.json,clean=t')
  assert config.data.dataset == f'{spec},exclude=/e.json'
  whole, clean = config.evals[split], config.evals[f'{split}_clean']
  assert dict(clean) == dict(whole) | {'dataset': f'{spec},exclude=t'}


def test_other_evaluations_have_no_clean_one():
  config = finetune.get_config('ViT-B/16,imagenet2012,real=true,clean=t')
  assert set(config.evals) == {'test', 'real', 'test_clean'}
  with pytest.raises(ValueError, match=r'whole test split.*held_out'):
    finetune.get_config('ViT-B/16,cifar10,train=selection,clean=t')


def test_a_run_tells_of_its_list(tmp_path):
  whole = data.open_source('digits:01')
  path, run = tmp_path / 'exclude.json', tmp_path / 'run'
  exclusion.write(path, whole, {'train': [3, 5]})
  spec = exclusion.join('digits:01', str(path))
  config = tiny_run.tiny_config({'data.dataset': spec})
  run_files.leave(run, {'step': 1, 'test/accuracy': 0.5}, config=config)
  assert compare.load_runs(run)['config.data.dataset'].tolist() == [spec]

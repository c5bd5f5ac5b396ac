"""Guards: VTAB's score, and its configs."""

import pytest

from tests import run_files
from vit_jax import config as config_lib
from vit_jax.config import inputs
from vit_jax.configs import finetune
from vit_jax.configs import vtab as vtab_config
from vit_jax.vtab import __main__ as vtab
from vit_jax.vtab.tasks import TASKS

NAMES = list(TASKS)
# The score of Table 9 is compared in tests/paper/test_printed.py.


# The score --------------------------------------------------------------------


def _leave_run(workdir, accuracy, *, done=True, evaluation='test'):
  rows = [
    {'step': step, f'{evaluation}/accuracy': value}
    for step, value in ((500, 0.1), (2500, accuracy))
  ]
  run_files.leave(workdir, *rows, done=2500 if done else None)


def test_only_finished_runs_count(tmp_path, monkeypatch):
  _leave_run(tmp_path / 'svhn', 0.5)
  _leave_run(tmp_path / 'dtd', 0.75)
  _leave_run(tmp_path / 'pets', 0.25, done=False)
  _leave_run(tmp_path / 'dmlab', 0.125, evaluation='validation')
  assert vtab.read(tmp_path, 'test') == {'dtd': 0.75, 'svhn': 0.5}
  assert vtab.read(tmp_path, 'validation') == {'dmlab': 0.125}
  monkeypatch.chdir(tmp_path)
  for words in (['.', 'other'], ['elsewhere'], ['.', 'test', 'more']):
    with pytest.raises(ValueError, match=words[-1]):
      vtab.main(words)


def test_command(tmp_path, capsys):
  for i, name in enumerate(NAMES):
    _leave_run(tmp_path / name, i / 100, evaluation='validation')
  vtab.main([str(tmp_path), 'validation'])
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert len(lines) == 19 + 4
  assert lines[1] == ['natural', 'CIFAR-100', '1.00']
  assert lines[18] == ['structured', 'sNORB-Elev', '18.00']
  # Means of 0 to 6, of 7 to 10, of 11 to 18, and of all.
  assert lines[19:] == [
    ['natural', '7', 'tasks', '3.00'],
    ['specialized', '4', 'tasks', '8.50'],
    ['structured', '8', 'tasks', '14.50'],
    ['mean', '19', 'tasks', '9.00'],
  ]
  (tmp_path / 'caltech101/DONE').unlink()
  with pytest.raises(ValueError, match='caltech101'):
    vtab.main([str(tmp_path), 'validation'])
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 19
  assert lines[0].split() == ['natural', 'Caltech101', '-']


# The configs ------------------------------------------------------------------

PREPROCESSING = dict.fromkeys(NAMES, 'resize(448)|random_crop|flip') | {
  **dict.fromkeys(['clevr_count', 'clevr_dist', 'dmlab'], 'resize|flip'),
  'dsprites_location': 'resize',
  'dsprites_orientation': 'resize(448)|random_crop',
  'kitti_dist': 'resize|flip',
  'smallnorb_azimuth': 'resize(448)|random_crop',
}


def test_one_setting_for_all_tasks():
  ours = config_lib.flatten(vtab_config.get_config('ViT-B/16,svhn'))
  # All but these are the settings of fine-tuning.
  others = config_lib.flatten(finetune.get_config('ViT-B/16,pets'))
  differing = {key for key in ours | others if ours[key] != others[key]}
  assert differing == {
    *('num_classes', 'data.dataset', 'data.num_examples', 'data.train_split'),
    *('data.preprocess', 'total_steps', 'schedule.warmup_steps'),
    *('schedule.peak', 'checkpoint.every', 'evals.test.every'),
  }
  assert ours['total_steps'] == 2500
  assert ours['data.batch_size'] == 512
  assert ours['schedule.peak'] == 0.01
  assert ours['schedule.warmup_steps'] == 200
  for name in NAMES:
    config = vtab_config.get_config(f'ViT-B/16,{name}')
    config.init.checkpoint = 'somewhere'
    config_lib.validate(config)
    assert config.data.preprocess == PREPROCESSING[name]
    for text in (config.data.preprocess, config.evals.test.preprocess):
      assert inputs.parse_preprocess(config, text).image_size == (384, 384)
    flat = config_lib.flatten(config)
    assert {key for key in flat if flat[key] != ours[key]} <= {
      *('num_classes', 'data.dataset', 'data.num_examples', 'evals.test.split'),
      *('data.train_split', 'data.preprocess', 'init.checkpoint'),
    }


@pytest.mark.parametrize(
  'argument, train, num_examples, evals',
  [
    ('', 'train[:800]+test[:200]', 1000, {'test': 'test[50%:]'}),
    # Settings are chosen without the test split.
    (',train=selection', 'train[:800]', 800, {'validation': 'test[:200]'}),
  ],
)
def test_splits(argument, train, num_examples, evals):
  config = vtab_config.get_config(f'ViT-B/16,smallnorb_azimuth{argument}')
  assert config.data.train_split == train
  assert config.data.num_examples == num_examples
  assert config.num_classes == 18
  assert {k: e.split for k, e in config.evals.items()} == evals


def test_all_gives_one_stage_per_task_with_the_same_weights():
  config = vtab_config.get_config('ViT-L/16,all,train=selection')
  assert config.order == tuple(NAMES)
  config.init.checkpoint, config.data.data_dir = 'weights', '/data'
  for name in NAMES:
    alone = vtab_config.get_config(f'ViT-L/16,{name},train=selection')
    alone.init.checkpoint, alone.data.data_dir = 'weights', '/data'
    assert config.stages[name].to_dict() == alone.to_dict()

"""Guards: VTAB's score and its configs; two tasks run from data to score."""

import json

import pytest

from vit_jax import config as config_lib
from vit_jax.config import inputs
from vit_jax.configs import finetune
from vit_jax.configs import vtab as vtab_config
from vit_jax.vtab import __main__ as vtab
from vit_jax.vtab.tasks import TASKS

NAMES = list(TASKS)
# The score of Table 9 is compared in tests/paper/test_printed.py.
ACCURACIES = {name: i / 100 for i, name in enumerate(NAMES)}


# The score --------------------------------------------------------------------


def _leave_run(workdir, accuracy, *, done=True, evaluation='test'):
  workdir.mkdir(parents=True)
  rows = [
    {'step': 500, f'{evaluation}/accuracy': 0.1},
    {'step': 2500, f'{evaluation}/accuracy': accuracy},
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (workdir / 'metrics.jsonl').write_text(text)
  if done:
    (workdir / 'DONE').write_text('2500\n')


def test_only_finished_runs_count(tmp_path):
  _leave_run(tmp_path / 'svhn', 0.5)
  _leave_run(tmp_path / 'dtd', 0.75)
  _leave_run(tmp_path / 'pets', 0.25, done=False)
  _leave_run(tmp_path / 'dmlab', 0.125, evaluation='validation')
  assert vtab.read(tmp_path) == {
    'test': {'dtd': 0.75, 'svhn': 0.5},
    'validation': {'dmlab': 0.125},
  }


def test_command(tmp_path, capsys):
  for name, value in ACCURACIES.items():
    _leave_run(tmp_path / name, value, evaluation='validation')
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
  with pytest.raises(ValueError, match=r"missing: \['caltech101'\]"):
    vtab.main([str(tmp_path), 'validation'])
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 19
  assert lines[0].split() == ['natural', 'Caltech101', '-']


@pytest.mark.parametrize(
  'words, reason',
  [
    (['.'], r"'test'; pass one of \['validation'\]"),
    (['elsewhere'], 'has no finished run of a task'),
    (['.', 'validation', 'more'], r"not \['more'\] too"),
  ],
)
def test_wrong_words(tmp_path, monkeypatch, words, reason):
  _leave_run(tmp_path / 'svhn', 0.5, evaluation='validation')
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=reason):
    vtab.main(words)


# The configs ------------------------------------------------------------------

CROP_AND_FLIP = 'resize(448)|random_crop|flip'
PREPROCESSING = dict.fromkeys(NAMES, CROP_AND_FLIP) | {
  'clevr_count': 'resize|flip',
  'clevr_dist': 'resize|flip',
  'dmlab': 'resize|flip',
  'dsprites_location': 'resize',
  'dsprites_orientation': 'resize(448)|random_crop',
  'kitti_dist': 'resize|flip',
  'smallnorb_azimuth': 'resize(448)|random_crop',
}


@pytest.mark.parametrize('name', NAMES)
def test_one_setting_for_all_tasks(name):
  config = vtab_config.get_config(f'ViT-B/16,{name}')
  with pytest.raises(ValueError, match=r'init.checkpoint is not set'):
    config_lib.validate(config)
  config.init.checkpoint = 'somewhere'
  config_lib.validate(config)
  assert config.total_steps == 2500
  assert config.image_size == (384, 384)
  assert config.data.batch_size == 512
  assert config.data.dataset == f'vtab:{name}'
  assert config.optimizer.name == 'sgd'
  assert config.optimizer.momentum == 0.9
  assert config.optimizer.weight_decay == 0.0
  assert config.optimizer.clip_norm == 1.0
  assert config.schedule.to_dict() == {
    'name': 'cosine',
    'peak': 0.01,
    'warmup_steps': 200,
    'end': 0.0,
  }
  assert config.init.new_head
  assert config.data.preprocess == PREPROCESSING[name]
  assert config.evals.test.preprocess == 'resize'
  for text in (config.data.preprocess, config.evals.test.preprocess):
    assert inputs.parse_preprocess(config, text).image_size == (384, 384)


@pytest.mark.parametrize(
  'argument, train, num_examples, evals',
  [
    (
      *('smallnorb_azimuth', 'train[:800]+test[:200]', 1000),
      {'test': 'test[50%:]'},
    ),
    # Settings are chosen without the test split.
    (
      *('smallnorb_azimuth,train=selection', 'train[:800]', 800),
      {'validation': 'test[:200]'},
    ),
  ],
)
def test_splits(argument, train, num_examples, evals):
  config = vtab_config.get_config(f'ViT-B/16,{argument}')
  assert config.data.train_split == train
  assert config.data.num_examples == num_examples
  assert config.num_classes == 18
  assert {k: e.split for k, e in config.evals.items()} == evals


def test_other_settings_equal_those_of_fine_tuning():
  ours = config_lib.flatten(vtab_config.get_config('ViT-B/16,svhn'))
  others = config_lib.flatten(finetune.get_config('ViT-B/16,pets'))
  differing = {key for key in ours | others if ours[key] != others[key]}
  assert differing == {
    *('num_classes', 'data.dataset', 'data.num_examples', 'data.train_split'),
    *('data.preprocess', 'total_steps', 'schedule.warmup_steps'),
    *('schedule.peak', 'checkpoint.every', 'evals.test.every'),
  }


def test_all_gives_one_stage_per_task_with_the_same_weights():
  config = vtab_config.get_config('ViT-L/16,all,train=selection')
  assert config.order == tuple(NAMES)
  config.init.checkpoint, config.data.data_dir = 'weights', '/data'
  for name in NAMES:
    alone = vtab_config.get_config(f'ViT-L/16,{name},train=selection')
    alone.init.checkpoint, alone.data.data_dir = 'weights', '/data'
    assert config.stages[name].to_dict() == alone.to_dict()


@pytest.mark.parametrize(
  'argument, reason',
  [
    ('ViT-B/16', 'lacks TASK'),
    ('ViT-B/16,clevr', "unknown task 'clevr'; the tasks are .*'dmlab'"),
    ('ViT-B/16,dmlab,train=some', r"train='some' .*'all', 'selection'"),
    ('B/16,dmlab', "Unknown model 'B/16'"),
  ],
)
def test_wrong_arguments(argument, reason):
  with pytest.raises(ValueError, match=reason):
    vtab_config.get_config(argument)

"""Guards: VTAB's score and its configs; two tasks run from data to score."""

import json

import pytest

from tests.data.test_vtab_tasks import write
from tests.tiny_run import SIZES
from vit_jax import config as config_lib
from vit_jax import vtab
from vit_jax.config import inputs
from vit_jax.configs import finetune
from vit_jax.configs import vtab as vtab_config
from vit_jax.data.sources import vtab_tasks as tasks
from vit_jax.training import stages

# Accuracy in percent: ViT-H/14 and L/16 from JFT-300M, L/16 from ImageNet-21k.
TABLE_9 = """
caltech101           95.3 95.4 90.8
cifar100             85.5 81.9 84.1
dtd                  75.2 74.3 74.1
flowers102           99.7 99.7 99.3
pets                 97.2 96.7 92.7
sun397               65.0 63.5 61.0
svhn                 88.9 87.4 80.9
camelyon             83.3 83.6 82.5
eurosat              96.7 96.5 95.6
resisc45             91.4 89.7 85.2
retinopathy          76.6 77.1 75.3
clevr_count          91.7 86.4 70.3
clevr_dist           63.8 63.1 56.1
dmlab                53.1 49.7 41.9
dsprites_location    79.4 74.5 74.7
dsprites_orientation 63.3 60.5 64.9
kitti_dist           84.5 82.2 79.9
smallnorb_azimuth    33.2 36.2 30.5
smallnorb_elevation  51.2 51.1 41.7
"""
ROWS = [row.split() for row in TABLE_9.strip().split('\n')]
NAMES = [row[0] for row in ROWS]


def _column(index):
  return {row[0]: float(row[1 + index]) for row in ROWS}


# The score --------------------------------------------------------------------


@pytest.mark.parametrize(
  'index, natural, specialized, structured, mean',
  [
    (0, 86.69, 87.00, 65.03, 77.63),
    (1, 85.56, 86.73, 62.96, 76.29),
    (2, 83.27, 84.65, 57.50, 72.71),
  ],
)
def test_means_of_table_9(index, natural, specialized, structured, mean):
  means = vtab.means(_column(index))
  assert round(means.pop('mean'), 2) == mean
  # The exact mean 65.025 is rounded to 65.03 above.
  assert means == pytest.approx(
    {
      'natural': natural,
      'specialized': specialized,
      'structured': structured,
    },
    abs=0.0051,
  )


def test_means_need_all_tasks():
  accuracies = _column(0)
  del accuracies['svhn'], accuracies['dmlab']
  with pytest.raises(ValueError, match=r"missing: \['svhn', 'dmlab'\]"):
    vtab.means(accuracies)
  with pytest.raises(ValueError, match=r"unknown: \['SVHN'\]"):
    vtab.means(_column(0) | {'SVHN': 88.9})


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
  assert vtab.read(tmp_path) == {'dtd': 0.75, 'svhn': 0.5}
  assert vtab.read(tmp_path, 'validation') == {'dmlab': 0.125}


def test_table_of_all_tasks():
  accuracies = {name: value / 100 for name, value in _column(0).items()}
  lines = vtab.table(accuracies).split('\n')
  assert len(lines) == 19 + 4
  assert lines[0].split() == ['natural', 'Caltech101', '95.30']
  assert lines[18].split() == ['structured', 'sNORB-Elev', '51.20']
  assert [line.split() for line in lines[19:]] == [
    ['natural', '7', 'tasks', '86.69'],
    ['specialized', '4', 'tasks', '87.00'],
    ['structured', '8', 'tasks', '65.03'],
    ['mean', '19', 'tasks', '77.63'],
  ]


def test_table_of_some_tasks():
  lines = vtab.table({'dtd': 0.75}).split('\n')
  assert len(lines) == 19
  assert lines[1].split() == ['natural', 'CIFAR-100', '-']
  assert lines[2].split() == ['natural', 'DTD', '75.00']


def test_command(tmp_path, capsys):
  for name, value in _column(0).items():
    _leave_run(tmp_path / name, value / 100, evaluation='validation')
  vtab.main([str(tmp_path), 'validation'])
  assert capsys.readouterr().out.endswith('mean         19 tasks      77.63\n')
  with pytest.raises(ValueError, match=r"'test'; pass one of \['validation'\]"):
    vtab.main([str(tmp_path)])
  with pytest.raises(ValueError, match='has no finished run of a task'):
    vtab.main([str(tmp_path / 'elsewhere')])
  (tmp_path / 'caltech101/DONE').unlink()
  with pytest.raises(ValueError, match=r"missing: \['caltech101'\]"):
    vtab.main([str(tmp_path), 'validation'])
  assert capsys.readouterr().out.startswith(
    'natural      Caltech101        -\n'
  )
  with pytest.raises(ValueError, match=r"not \['more'\] too"):
    vtab.main([str(tmp_path), 'validation', 'more'])


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


@pytest.mark.parametrize('part', ['all', 'selection'])
@pytest.mark.parametrize('name', NAMES)
def test_one_setting_for_all_tasks(name, part):
  config = vtab_config.get_config(f'ViT-B/16,{name},train={part}')
  with pytest.raises(ValueError, match=r'init.checkpoint is not set'):
    config_lib.validate(config)
  config.init.checkpoint = 'somewhere'
  config_lib.validate(config)
  assert config.total_steps == 2500
  assert config.image_size == (384, 384)
  assert config.data.batch_size == 512
  assert config.data.dataset == f'vtab:{name}'
  assert config.optimizer.to_dict() == {
    'name': 'sgd',
    'momentum': 0.9,
    'weight_decay': 0.0,
    'weight_decay_params': 'all',
    'moment_dtype': 'float32',
    'clip_norm': 1.0,
  }
  assert config.schedule.to_dict() == {
    'name': 'cosine',
    'peak': 0.01,
    'warmup_steps': 200,
    'end': 0.0,
  }
  assert config.init.new_head
  assert config.data.preprocess == PREPROCESSING[name]
  (evaluation,) = config.evals.values()
  assert evaluation.preprocess == 'resize'
  for text in (config.data.preprocess, evaluation.preprocess):
    assert inputs.parse_preprocess(config, text).image_size == (384, 384)


def test_trains_on_all_images_and_evaluates_on_the_test_split():
  config = vtab_config.get_config('ViT-B/16,smallnorb_azimuth')
  assert config.data.train_split == 'train[:800]+test[:200]'
  assert config.data.num_examples == 1000
  assert config.num_classes == 18
  assert {k: e.split for k, e in config.evals.items()} == {'test': 'test[50%:]'}


def test_settings_are_chosen_without_the_test_split():
  config = vtab_config.get_config('ViT-B/16,clevr_dist,train=selection')
  assert config.data.train_split == 'train[:800]'
  assert config.data.num_examples == 800
  assert {k: e.split for k, e in config.evals.items()} == {
    'validation': 'train[63000:63200]'
  }


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


# From data to score -----------------------------------------------------------


def shrink(config):
  """Shrinks a task's config to a run of seconds."""
  config.image_size = (16, 16)
  config.model.name = 'ViT-B/8'
  config.model.update(SIZES)
  config.data.batch_size = 8
  # The written data has 8 images per split, not a thousand.
  config.data.train_split, config.data.num_examples = 'train[:8]', 8
  config.data.preprocess = config.data.preprocess.replace('448', '20')
  config.evals.test.split = 'test[4:]'
  config.total_steps, config.schedule.warmup_steps = 2, 1
  config.log.tensorboard = False
  config.mesh.data = 1


@pytest.mark.gate
def test_two_tasks_from_data_to_score(tmp_path, capsys):
  kept = ('clevr_dist', 'smallnorb_azimuth')
  for name in kept:
    write(tasks.TASKS[name].builder, str(tmp_path / 'tfds'))
  config = vtab_config.get_config('ViT-B/16,all')
  config.init.checkpoint, config.data.data_dir = '', str(tmp_path / 'tfds')
  config.order = kept
  for name in NAMES:
    if name in kept:
      shrink(config.stages[name])
    else:
      del config.stages[name]
  workdir = tmp_path / 'runs'
  stages.train_stages(config, workdir)
  accuracies = vtab.read(workdir)
  assert tuple(accuracies) == kept
  # The records alternate between two kinds, so no other accuracy can occur.
  assert set(accuracies.values()) <= {0.0, 0.5, 1.0}
  # A finished run stays as it is.
  log = workdir / 'clevr_dist/metrics.jsonl'
  before = log.stat().st_mtime_ns, log.read_text()
  stages.train_stages(config, workdir)
  assert (log.stat().st_mtime_ns, log.read_text()) == before
  assert 'clevr_dist' in capsys.readouterr().out

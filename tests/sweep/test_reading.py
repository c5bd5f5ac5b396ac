"""Guards: sweep files define valid runs and never choose by test results."""

import pathlib

import pytest

from vit_jax.sweep import Run, Study, Sweep, make_run, reading, spec

ROOT = pathlib.Path(__file__).parents[2]
# Sweep file -> an argument, its number of studies, and of candidates per study.
SWEEPS = {
  'digits': ('', 2, 4),
  'finetune': ('ViT-B/16,imagenet2012+cifar10+folder:/data/a', 3, 4),
  'regularisation': ('ViT-B/16,imagenet2012', 1, 12),
  'reproduce': ('figure13,scale=mini,seeds=1', 6, 0),
}


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
  monkeypatch.chdir(ROOT)


@pytest.mark.parametrize('name', SWEEPS)
def test_sweep_files(name):
  argument, studies, candidates = SWEEPS[name]
  sweep = reading.load(f'configs/sweeps/{name}.py:{argument}')
  assert len(sweep.studies) == studies
  assert {len(study.candidates) for study in sweep.studies} == {candidates}
  reading.check(reading.override(sweep, ['init.checkpoint=runs/pretrained']))


def test_the_fine_tuning_protocol():
  sweep = reading.load(f'configs/sweeps/finetune.py:{SWEEPS["finetune"][0]}')
  imagenet, cifar, own = sweep.studies
  rates = [
    [run.overrides['schedule.peak'] for run in study.candidates]
    for study in sweep.studies
  ]
  assert rates == [
    [0.003, 0.01, 0.03, 0.06],
    [0.001, 0.003, 0.01, 0.03],
    [0.001, 0.003, 0.01, 0.03],
  ]
  sweep = reading.override(sweep, ['init.checkpoint=x'])
  imagenet, cifar, own = sweep.studies

  def data(run):
    config = reading.read_config(run)
    [(name, section)] = config.evals.items()
    return config.data.train_split, name, section.split

  assert data(imagenet.candidates[0]) == (
    'train[:99%]',
    'held_out',
    'train[99%:]',
  )
  assert data(cifar.candidates[0]) == ('train[:98%]', 'held_out', 'train[98%:]')
  assert data(own.candidates[0]) == (
    'shuffled(train)[:90%]',
    'held_out',
    'shuffled(train)[90%:]',
  )
  finals = own.finals_of(own.candidates[2])
  assert [run.name for run in finals] == [
    f'folder:_data_a/rate=0.01,seed={seed}' for seed in range(3)
  ]
  assert data(finals[0]) == ('train', 'test', 'test')
  config = reading.read_config(finals[2])
  assert (config.seed, config.schedule.peak) == (2, 0.01)
  assert config.init.checkpoint == 'x'
  assert config.image_size == (384, 384)


def _sweep_file(path, overrides):
  path.write_text(
    'from vit_jax.sweep import Study, Sweep, make_run\n'
    'def get_sweep(argument):\n'
    '  config = "configs/finetune.py:ViT-Ti/4,digits,train="\n'
    f'  overrides = {{"init.checkpoint": "", **{overrides!r}}}\n'
    '  runs = [make_run("s", config + argument, overrides, train=argument)]\n'
    '  return Sweep([Study("s", runs)])\n'
  )
  return path


@pytest.fixture
def sweep(command):
  """Runs the command with a work directory, a sweep and other words."""

  def call(path, file, *words, **variables):
    flags = (f'--sweep={file}', f'--workdir={path}')
    return command('vit_jax.sweep', *flags, *words, **variables)

  return call


@pytest.mark.gate
def test_choosing_by_test_results_is_refused_before_any_run(tmp_path, sweep):
  file = _sweep_file(tmp_path / 'sweep.py', {})
  result = sweep(tmp_path / 'out', f'{file}:all')
  assert result.returncode == 1
  assert result.stdout == ''
  assert result.stderr.startswith(
    "error: s/train=all has the evaluations ['auto']. A candidate must"
  )
  assert result.stderr.count('\n') == 1
  assert not (tmp_path / 'out' / 'runs').exists()


@pytest.mark.gate
def test_a_dry_run_prints_commands(tmp_path, sweep):
  file = _sweep_file(tmp_path / 'sweep.py', {'data.batch_size': 8})
  words = ['--set=image_size=(8, 8)', '--dry_run']
  # A launcher must not touch a device, which its runs need.
  platform = {'JAX_PLATFORMS': 'no_such_thing'}
  result = sweep(tmp_path / 'out', f'{file}:selection', *words, **platform)
  assert result.returncode == 0, result.stderr
  out = tmp_path / 'out'
  assert result.stdout == (
    'python -m vit_jax.main'
    ' --config=configs/finetune.py:ViT-Ti/4,digits,train=selection'
    ' --config.init.checkpoint= --config.data.batch_size=8'
    f" '--config.image_size=(8, 8)' --workdir={out}/runs/s/train=selection"
    f' --compilation_cache={out}/compilation_cache\n'
    '# Runs in all: 1. Finished: 0. Can start now: 1. Follow: 0.\n'
  )
  assert not out.exists()


@pytest.mark.parametrize(
  'run, message',
  [
    (Run('r', 'configs/none.py'), r'r: --config=configs/none.py: there is no'),
    (Run('r', 'configs/finetune.py:x'), 'r: .*lacks DATASET'),
    (Run('r', 'configs/quickstart.py'), 'r: its config has stages'),
    (
      Run('r', 'configs/quickstart.py:pretrain', {'sed': 1}),
      'r: --config.sed is not a key of this config. Did you mean seed',
    ),
    (
      Run('r', 'configs/quickstart.py:pretrain', {'seed': 'x'}),
      'r: .*config.seed',
    ),
    (
      Run('r', 'configs/quickstart.py:pretrain', {'seed': -1}),
      'r: seed=-1 must be at least 0',
    ),
  ],
)
def test_wrong_configs_are_found_before_any_run(run, message):
  with pytest.raises(ValueError, match=message):
    reading.check(Sweep([Study('s', finals=[run])]))


def test_values_reach_the_config():
  overrides = {
    'seed': 3,
    'image_size': (16, 24),
    'log.tensorboard': False,
    'optimizer.weight_decay': 0.5,
    'data.dataset': 'digits:45',
  }
  run = Run('r', 'configs/quickstart.py:pretrain', overrides)
  config = reading.read_config(run)
  assert config.seed == 3
  assert config.image_size == (16, 24)
  assert config.log.tensorboard is False
  assert config.optimizer.weight_decay == 0.5
  assert config.data.dataset == 'digits:45'


def test_set_applies_to_all_runs():
  sweep = reading.load('configs/sweeps/digits.py:01+23')
  changed = reading.override(sweep, ['total_steps=5', 'data.batch_size=8'])
  for study in changed.studies:
    for run in study.all_runs():
      assert run.overrides['total_steps'] == '5'
      assert reading.read_config(run).total_steps == 5
      assert reading.read_config(run).data.batch_size == 8
  for word in ('seed=3', 'schedule.peak=0.5'):
    with pytest.raises(
      ValueError, match=f'--set={word}: the runs of .* differ'
    ):
      reading.override(sweep, [word])
  with pytest.raises(ValueError, match='--set=seed: expected KEY=VALUE'):
    reading.override(sweep, ['seed'])


def test_files_that_are_not_sweeps_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"there is no file 'no.py'"):
    reading.load('no.py')
  file = tmp_path / 'x.py'
  file.write_text('')
  with pytest.raises(ValueError, match='defines no get_sweep'):
    reading.load(str(file))


# Before the configs are read --------------------------------------------------


@pytest.mark.parametrize(
  'study, labels, name',
  [
    ('digits:01', {'rate': 0.03}, 'digits:01/rate=0.03'),
    ('a', {'rate': 0.001, 'seed': 2}, 'a/rate=0.001,seed=2'),
    ('folder:/data/my birds', {'x': '../y'}, 'folder:_data_my_birds/x=.._y'),
    ('..', {'model': 'ViT-B/16'}, '_/model=ViT-B_16'),
  ],
)
def test_a_run_is_named_by_its_labels(study, labels, name):
  run = make_run(study, 'c.py', {}, **labels)
  assert run.name == name
  assert run.labels == labels
  spec.check(Sweep([Study('a', [run])]))


_A, _B = Run('a/x=1', 'c.py'), Run('a/x=2', 'c.py')


@pytest.mark.parametrize(
  'studies, message',
  [
    ([Study('a')], "'a' has no runs"),
    ([Study('a', [_A], [_B])], 'must be a function'),
    ([Study('a', [], lambda _: [_A])], 'must be a function'),
    ([Study('a', [_A, Run('a/x=1', 'd.py')])], "runs are called 'a/x=1'"),
    ([Study('a', [_A]), Study('b', [_A])], "runs are called 'a/x=1'"),
  ],
)
def test_wrong_sweeps_are_refused(studies, message):
  with pytest.raises(ValueError, match=message):
    spec.check(Sweep(studies))


def test_a_run_can_start_from_the_weights_of_another():
  first = Run('first', 'c.py')
  second = Run('second', 'c.py', {'init.checkpoint': 'run:first', 'a': 1})
  assert (first.needs, second.needs) == ((), ('first',))
  spec.check(Sweep([Study('a', [first]), Study('b', finals=[second])]))


@pytest.mark.parametrize(
  ('needed', 'message'),
  [
    ('other', 'a starts from run:other, but only these runs'),
    # b/seed=0 runs only if its candidate is chosen.
    ('b/seed=0', 'a starts from run:b/seed=0, but .*certain to run: a, b/rate'),
  ],
)
def test_weights_that_no_run_can_start_from_are_refused(needed, message):
  run = Run('a', 'c.py', {'init.checkpoint': f'run:{needed}'})
  chosen = Study(
    'b',
    [Run('b/rate=1', 'c.py')],
    lambda winner: [Run('b/seed=0', 'c.py')],
  )
  with pytest.raises(ValueError, match=message):
    spec.check(Sweep([Study('a', [run]), chosen]))

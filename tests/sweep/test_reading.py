"""Guards: sweep files define valid runs and never choose by test results."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from vit_jax.sweep import Run, Study, Sweep, reading, spec

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


def test_all_sweep_files_are_listed():
  folder = ROOT / 'configs' / 'sweeps'
  assert {p.stem for p in folder.glob('[!_]*.py')} == set(SWEEPS)


@pytest.mark.parametrize('name', SWEEPS)
def test_sweep_files(name):
  argument, studies, candidates = SWEEPS[name]
  sweep = reading.load(f'configs/sweeps/{name}.py:{argument}')
  assert len(sweep.studies) == studies
  assert {len(study.candidates) for study in sweep.studies} == {candidates}
  steps = reading.check(
    reading.override(sweep, ['init.checkpoint=runs/pretrained'])
  )
  assert set(steps) == {
    run.name for study in sweep.studies for run in study.all_runs()
  }
  # `regularisation` trains for epochs, so its number of steps is not known (0).
  expected = {'reproduce': {1600}, 'regularisation': {0}}
  if name in expected:
    assert set(steps.values()) == expected[name]


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


def test_only_reported_imagenet_runs_evaluate_real():
  argument = 'BiT-R50x1,imagenet2012+cifar10'
  sweep = reading.load(f'configs/sweeps/finetune.py:{argument},real=true')
  sweep = reading.override(sweep, ['init.checkpoint=x'])
  reading.check(sweep)

  def evaluations(runs):
    return [list(reading.read_config(run).evals) for run in runs]

  imagenet, cifar = sweep.studies
  assert evaluations(imagenet.candidates) == [['held_out']] * 5
  assert evaluations(cifar.candidates) == [['held_out']] * 5
  for winner in (imagenet.candidates[0], imagenet.candidates[-1]):
    assert evaluations(imagenet.finals_of(winner)) == [['real', 'test']] * 3
  assert evaluations(cifar.finals_of(cifar.candidates[0])) == [['test']] * 3
  # Candidates do not depend on `real`, so a finished sweep can add it later.
  plain = reading.load(f'configs/sweeps/finetune.py:{argument}')
  candidates = plain.studies[0].candidates
  assert [run.config for run in candidates] == [
    run.config for run in imagenet.candidates
  ]
  for word in ('', ',real=false'):
    each = reading.load(f'configs/sweeps/finetune.py:{argument}{word}')
    [run, *_] = each.studies[0].finals_of(candidates[0])
    assert run.config == (
      'configs/finetune.py:train=all,BiT-R50x1,imagenet2012'
    )


def test_real_without_imagenet_is_refused():
  path = 'configs/sweeps/finetune.py:ViT-B/16,cifar10+pets,real='
  with pytest.raises(ValueError, match=r"real=true .*\['cifar10', 'pets'\]"):
    reading.load(path + 'true')
  assert len(reading.load(path + 'false').studies) == 2
  argument = 'ViT-B/16,imagenet2012,real=yes'
  sweep = reading.load(f'configs/sweeps/finetune.py:{argument}')
  with pytest.raises(ValueError, match="real='yes' is unknown"):
    reading.check(reading.override(sweep, ['init.checkpoint=x']))


def test_the_bit_setup_is_another_candidate_for_resnets():
  sweep = reading.load('configs/sweeps/finetune.py:BiT-R50x1,cifar10')
  sweep = reading.override(sweep, ['init.checkpoint=x'])
  reading.check(sweep)
  [study] = sweep.studies
  assert [run.name for run in study.candidates] == [
    *(f'cifar10/rate={rate}' for rate in (0.001, 0.003, 0.01, 0.03)),
    'cifar10/setup=bit',
  ]

  def setup(run):
    config = reading.read_config(run)
    return config.schedule.name, config.schedule.peak, config.mixup_alpha

  assert setup(study.candidates[1]) == ('cosine', 0.003, 0.0)
  assert setup(study.candidates[-1]) == ('staircase', 0.003, 0.1)
  for candidate in study.candidates:
    for final in study.finals_of(candidate):
      assert setup(final) == setup(candidate)


def test_the_regularisation_sweep():
  sweep = reading.load('configs/sweeps/regularisation.py:ViT-B/16,imagenet2012')
  [study] = sweep.studies
  run = study.candidates[-1]
  assert run.labels == {'weight_decay': 0.3, 'dropout': 0.1, 'smoothing': 1e-4}
  for each, expected in (
    (run, ('train[:99%]', 'held_out', 'train[99%:]')),
    (study.finals_of(run)[0], ('train', 'validation', 'validation')),
  ):
    config = reading.read_config(each)
    assert (
      config.optimizer.weight_decay,
      config.model.dropout_rate,
      config.loss.label_smoothing,
    ) == (0.3, 0.1, 1e-4)
    [(name, section)] = config.evals.items()
    assert (config.data.train_split, name, section.split) == expected
  # Class folders are in the order of classes, so a slice must be shuffled.
  path = 'configs/sweeps/regularisation.py:ViT-B/16,folder:/a'
  config = reading.read_config(reading.load(path).studies[0].candidates[0])
  assert config.data.train_split == 'shuffled(train)[:90%]'
  assert config.evals.held_out.split == 'shuffled(train)[90%:]'
  with pytest.raises(ValueError, match='jft300m is not a small data set'):
    reading.load('configs/sweeps/regularisation.py:ViT-B/16,jft300m')


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


def _command(path, sweep, *words):
  return subprocess.run(
    [
      *(sys.executable, '-m', 'vit_jax.sweep'),
      *(f'--sweep={sweep}', f'--workdir={path}', *words),
    ],
    cwd=ROOT,
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
  )


def test_a_sweep_names_its_model():
  with pytest.raises(ValueError, match='auto is for single runs'):
    reading.load('configs/sweeps/finetune.py:auto,cifar10')


@pytest.mark.gate
def test_choosing_by_test_results_is_refused_before_any_run(tmp_path):
  file = _sweep_file(tmp_path / 'sweep.py', {})
  result = _command(tmp_path / 'out', f'{file}:all')
  assert result.returncode == 1
  assert result.stdout == ''
  assert result.stderr.startswith(
    "error: s/train=all has the evaluations ['auto']. A candidate must"
  )
  assert result.stderr.count('\n') == 1
  assert not (tmp_path / 'out' / 'runs').exists()


@pytest.mark.gate
def test_a_dry_run_prints_commands(tmp_path):
  file = _sweep_file(tmp_path / 'sweep.py', {'data.batch_size': 8})
  words = ['--set=image_size=(8, 8)', '--dry_run']
  result = _command(tmp_path / 'out', f'{file}:selection', *words)
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


def test_renaming_the_test_split_does_not_help(tmp_path):
  file = _sweep_file(tmp_path / 'sweep.py', {'evals.held_out.split': 'test'})
  sweep = reading.load(f'{file}:selection')
  with pytest.raises(ValueError, match=r"reads 'test', but \['test'\] is no"):
    reading.check(sweep)


@pytest.mark.parametrize(
  'run, message',
  [
    (Run('r', 'configs/none.py'), r'r: --config=configs/none.py: there is no'),
    (Run('r', 'configs/finetune.py:x'), 'r: .*lacks DATASET'),
    (Run('r', 'configs/quickstart.py'), 'r: its config has stages'),
    (
      Run('r', 'configs/quickstart.py:pretrain', {'sed': 1}),
      'r: --config.sed is not a key of this config',
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


@pytest.mark.parametrize('wrong', [None, -1, 2**32, 1.0, 'x'])
def test_runs_that_differ_in_seeds_are_read_once(wrong, tmp_path, capsys):
  file = tmp_path / 'own.py'
  file.write_text(
    'from vit_jax.configs import quickstart\n'
    'def get_config(words):\n'
    "  print('read')\n"
    '  return quickstart.get_config(words)\n'
  )
  first = [Run(f's/{i}', f'{file}:pretrain', {'seed': i}) for i in range(3)]
  last = [
    Run(f't/{run.name}', run.config, {'init.checkpoint': f'run:{run.name}'})
    for run in first
  ]
  if wrong is not None:
    last.append(Run('t/w', first[0].config, {'seed': wrong}))
  sweep = Sweep([Study('s', finals=first), Study('t', finals=last)])
  if wrong is None:
    assert len(reading.check(sweep)) == 6
    # Each kind is loaded for its keys, and again with its overrides.
    assert capsys.readouterr().out == 4 * 'read\n'
  else:
    with pytest.raises(ValueError, match=r't/w: .*seed'):
      reading.check(sweep)


def test_values_reach_the_config():
  overrides = {
    'seed': 3,
    'image_size': (16, 24),
    'log.tensorboard': False,
    'optimizer.weight_decay': 0.5,
    'data.dataset': 'digits:45',
  }
  run = Run('r', 'configs/quickstart.py:pretrain', overrides)
  # The values must also survive sweep.json.
  study = Study('s', finals=[run])
  text = json.dumps(spec.to_json(Sweep([study])))
  [again] = spec.from_json(json.loads(text)).studies[0].finals_of(None)
  for each in (run, again):
    config = reading.read_config(each)
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

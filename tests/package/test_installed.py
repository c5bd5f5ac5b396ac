"""Guards: the installed wheel works in an empty environment, from any folder.

These tests take minutes and need the package index: run them with -m package.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.package


@pytest.fixture(scope='module')
def python(built, tmp_path_factory):
  """Returns the Python of an environment with the wheel and its libraries."""
  folder = tmp_path_factory.mktemp('environment')
  subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
  words = ('-m', 'pip', 'install', '--quiet', str(built.wheel))
  subprocess.run([folder / 'bin/python', *words], check=True)
  return folder / 'bin/python'


@pytest.fixture
def run(python, tmp_path):
  """Runs a command in a folder whose own `configs/` must not be imported."""
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs/__init__.py').write_text('raise SystemExit("no")')
  kept = {
    name: value
    for name, value in os.environ.items()
    if name not in ('PYTHONPATH', 'XLA_FLAGS')
  }

  def call(*words):
    done = subprocess.run(
      [python, '-m', *words],
      cwd=tmp_path,
      env=kept | {'JAX_PLATFORMS': 'cpu'},
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  return call


def test_the_quickstart_and_what_may_be_done_with_it(run, tmp_path):
  run('vit_jax.main', '--config=quickstart', '--workdir=quick')
  assert (tmp_path / 'quick/finetune/DONE').exists()
  run('vit_jax.convert', '--from=quick/pretrain', '--to=small.npz')
  assert (tmp_path / 'small.npz').stat().st_size > 1e5


@pytest.mark.parametrize('file', ['', 'configs/', '.py'])
def test_a_plan_without_the_compiler(run, file):
  name = 'pretrain.py' if file == '.py' else f'{file}pretrain'
  config = f'{name}:ViT-L/16,jft300m'
  found = json.loads(run('vit_jax.plan', f'--config={config}', '--json'))
  assert found['config'] == config
  assert found['params'] > 3e8


def test_the_version_has_the_commit_that_was_built(run, built):
  first, *_ = run('vit_jax.main', '--version').splitlines()
  assert first.endswith(f', commit {built.head}')


def test_the_items(run):
  words = ('all', '--list', '--workdir=X')
  assert 'table5' in run('vit_jax.reproduce', *words)


@pytest.mark.parametrize('name', ['digits', 'sweeps/digits.py'])
def test_a_sweep_as_far_as_its_commands(run, name):
  words = (f'--sweep={name}', '--dry_run', '--workdir=X')
  lines = run('vit_jax.sweep', *words).splitlines()
  # The commands are as in a checkout, so a run's records do not depend on the
  # place of the package.
  assert ' --config=configs/finetune.py:' in lines[0]


def test_a_sweep_runs(run, tmp_path):
  words = ['--sweep=configs/sweeps/digits.py:01', '--workdir=sweep']
  for name, value in {
    'total_steps': 2,
    'schedule.warmup_steps': 1,
    'model.depth': 1,
    'model.width': 12,
  }.items():
    words.append(f'--set={name}={value}')
  assert 'digits:01' in run('vit_jax.sweep', *words)
  assert len((tmp_path / 'sweep/results.md').read_text().splitlines()) == 3


def test_extras_are_those_of_the_installed_package(run):
  words = ('pip', 'install', '--dry-run', '--quiet', 'vit-paper-jax[slurm]')
  run(*words)


def test_an_editable_install_in_place_of_the_wheel(run, built):
  words = ('pip', 'install', '--quiet', '--no-deps', '--editable')
  run(*words, str(built.source))
  first, *_ = run('vit_jax.sweep', '--version').splitlines()
  assert first.endswith(f', commit {built.head}')
  words = ('--config=mini:ViT-B/16,cifar10', '--json')
  assert json.loads(run('vit_jax.plan', *words))['params'] > 1e4
  assert 'From nothing' in run('vit_jax.launch.gke', '--help')

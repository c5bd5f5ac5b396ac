"""Guards: the command lists, plans, runs and draws what its flags ask for."""

import json
import re

import pytest

from tests import run_files
from vit_jax.configs import mini

pytestmark = pytest.mark.gate


@pytest.fixture
def run(command):
  def call(*words, check=True):
    found = command('vit_jax.reproduce', *words, XLA_FLAGS='')
    assert not check or found.returncode == 0, found.stderr
    return found

  return call


def _write_finished_run(folder, name, metrics):
  """Writes the files of a finished run of ViT-B/16."""
  config = mini.get_config('ViT-B/16,jft300m,epochs=7')
  config.total_steps = 2000
  # A run resolves these keys before it saves its config.
  config.num_classes, config.model.dtype = 10, 'float32'
  workdir = folder / 'runs' / name
  run_files.leave(workdir, metrics, config=config, done=2000)
  for commit in ('0123456789abcdef+', 'fedcba9876543210'):
    with (workdir / 'environment.jsonl').open('a') as file:
      file.write(json.dumps({'commit': commit}) + '\n')


def test_a_plan_appears_in_the_table_and_on_the_page(run, tmp_path):
  plan = {
    'config': 'configs/pretrain.py:ViT-L/16,imagenet21k',
    'topology': 'v3:16x16',
    'core_days_raw': 205.52,
  }
  (tmp_path / 'plan.json').write_text(json.dumps([plan]))
  words = ('table2', f'--workdir={tmp_path}')
  lines = run(*words, '--plan').stdout.splitlines()
  [line] = [line for line in lines if 'ImageNet-21k' in line]
  assert line.split()[-4:] == ['272,460', '205.5', 'not', 'begun']
  assert [path.name for path in tmp_path.iterdir()] == ['plan.json']
  out = run(*words, '--render').stdout
  assert '205.52 (paper 0.23k, Δ \N{MINUS SIGN}24.48)' in out


def test_finished_runs_are_listed_and_rendered(run, tmp_path):
  last = {
    'step': 2000,
    'goodput/steps_seconds': 1800.0,
    'goodput/devices': 2.0,
  }
  for seed, accuracy in enumerate((0.25, 0.5, 0.75)):
    suffix = f',seed-{seed}' if seed else ''
    _write_finished_run(
      tmp_path,
      f'ViT-B_32,JFT-300M,14-epochs{suffix}/run=pretraining',
      last | {'few_shot/5shot/accuracy': accuracy},
    )
  # This run belongs to Table 5 and other items, but not to Table 8.
  _write_finished_run(
    tmp_path, 'ViT-B_16,JFT-300M,7-epochs/run=pretraining', last
  )
  words = ('table8', '--scale=mini', '--seeds=3', f'--workdir={tmp_path}')
  assert 'table8    3 of 24   runs' in run(*words, '--list').stdout
  out = run(*words, '--render').stdout
  assert '0.50000 ± 0.25000' in out
  assert '## Table 8' in out
  assert '## Table 5' not in out
  # The page shows every item that uses any of the runs.
  assert re.search(r'index.html shows 4 of \d+ runs', out)
  page = (tmp_path / 'index.html').read_text()
  assert '0.50000' in page
  assert 'Table 5' in page
  assert 'Table 7' not in page
  assert '3.00' in page  # Device hours: three runs, each half an hour on two.
  # The run was resumed with another commit.
  assert page.count('0123456789+, fedcba9876<') >= 3


def test_items_without_runs_are_always_shown_and_start_no_run(run, tmp_path):
  words = ('--scale=mini', f'--workdir={tmp_path}')
  out = run('table1', 'table2', *words, '--list').stdout
  first, second = out.splitlines()
  assert first.startswith('table1 from the code')
  assert '0 of ' in second
  assert not list(tmp_path.iterdir())
  out = run('table1', *words).stdout
  assert '| ViT-B | 12 ✓ | 768 ✓ | 3072 ✓ | 12 ✓ | 86,567,656 ✓' in out
  assert '## Table 3' not in out
  assert 'In miniature' not in out
  assert not (tmp_path / 'runs').exists()
  text = (tmp_path / 'results.md').read_text()
  assert re.findall('^## (Table .)', text, re.MULTILINE) == [
    *('Table 1', 'Table 3', 'Table 4')
  ]
  assert run('table1', '--dry_run', *words).stdout == ''


def test_a_dry_run_prints_commands_and_writes_nothing(run, tmp_path):
  out = run(
    *('table7', '--dry_run', '--seeds=3', '--jft=folder:/jft'),
    f'--workdir={tmp_path}',
  ).stdout
  *lines, totals = out.splitlines()
  commands = [line for line in lines if line.startswith('python')]
  assert len(commands) == 12
  assert totals == (
    '# Runs in all: 492. Finished: 0. Can start now: 12. Follow: 480.'
  )
  assert all('--config.data.dataset=folder:/jft' in line for line in commands)
  assert not list(tmp_path.iterdir())


def test_objectnet_starts_runs_only_where_its_data_are(run, tmp_path):
  workdir = f'--workdir={tmp_path / "new"}'
  out = run('objectnet', workdir).stdout
  assert 'ObjectNet was not evaluated: download it from' in out
  assert not (tmp_path / 'new' / 'runs').exists()
  for name in ('images', 'mappings'):
    (tmp_path / name).mkdir()
  words = ('--dry_run', '--jft=folder:/jft', f'--objectnet={tmp_path}')
  out = run('objectnet', *words, f'--workdir={tmp_path / "other"}').stdout
  assert '--config=configs/pretrain.py:ViT-H/14,jft300m' in out
  assert 'was not evaluated' not in out


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['all', '--list', '--plan'], 'plan'),
    (['released', '--scale=mini', '--set=a=1'], 'does not take --scale'),
    (['table5', '--weights=/w'], 'pages of their own'),
    # JFT-300M is not public, so it has no default data set.
    (['table7', '--dry_run'], 'Name your own data: --jft=SPEC'),
    (['table5', '--objectnet=/data'], 'is for the item objectnet'),
    (['objectnet', '--objectnet=/data', '--scale=mini'], 'at --scale=paper'),
    (
      ['table8', '--dry_run', '--jft=digits', '--first_seed=9'],
      'first_seed=9 does not go with scale=paper',
    ),
  ],
)
def test_invalid_arguments_are_refused(run, words, message, tmp_path):
  found = run(*words, f'--workdir={tmp_path}', check=False)
  assert found.returncode
  assert message in found.stdout + found.stderr
  assert 'Traceback' not in found.stderr


@pytest.mark.slow  # 24 runs, each a process that compiles: four minutes.
def test_an_item_is_reproduced_from_the_runs_to_the_page(run, tmp_path):
  words = (
    *('table8', '--scale=mini', '--seeds=3', f'--workdir={tmp_path}'),
    '--parallel=2',
    *('--set=total_steps=2', '--set=schedule.warmup_steps=1'),
    '--set=evals.few_shot.split=test[:50]',
    '--set=evals.validation.split=train[49950:]',
  )
  out = run(*words).stdout
  assert re.search(r'index.html shows 24 of \d+ runs', out)
  assert '| missing |' not in out
  # The second call starts no run.
  started = [out.count(' started  ['), run(*words).stdout.count(' started  [')]
  assert started == [24, 0]

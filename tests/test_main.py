"""Guards: flags, messages and exit codes of `python -m vit_jax.main`."""

import json
import pathlib
import sys

import jax
import numpy as np
import pytest

import vit_jax
from tests.commands import run_new

ROOT = pathlib.Path(__file__).parents[1]

_OPTIONS = (
  'import jax;print(*options.values(), jax.config.jax_compilation_cache_dir)'
)
_SHOW = 'print(config.to_json_best_effort())'
_NO_MEMORY = (
  'import jax; raise jax.errors.JaxRuntimeError("{}: Out of memory allocating 8'
  ' bytes.\\nBufferAssignment:\\n")'
)
_QUICKSTART = '--config=configs/quickstart.py'
_PRETRAIN = _QUICKSTART + ':pretrain'
_FINETUNE = '--config=configs/finetune.py:ViT-B/16,pets'
_WORKDIR = '--workdir=nowhere'

# Name -> the arguments, and the code that replaces the run.
COMMANDS = {
  'no flags': ([], _SHOW),
  'no workdir': ([_PRETRAIN], _SHOW),
  'no config': ([_WORKDIR], _SHOW),
  'unknown flag': ([_PRETRAIN, '--wrokdir=a'], _SHOW),
  'no flag': ([_PRETRAIN, _WORKDIR, 'extra'], _SHOW),
  'unknown key': ([_PRETRAIN, _WORKDIR, '--config.model.widht=3'], _SHOW),
  'version': (['--version'], ''),
  'help': (['--help'], ''),
  'no weights': ([_FINETUNE, _WORKDIR], ''),
  'file as workdir': ([_PRETRAIN, '--workdir=setup.py/run'], ''),
  'link as workdir': ([_PRETRAIN, '--workdir=FOLDER/link'], ''),
  'below a link': ([_PRETRAIN, '--workdir=FOLDER/link/run'], ''),
  'long workdir': ([_PRETRAIN, f'--workdir=runs/{"x" * 300}'], ''),
  'folder as log': ([_PRETRAIN, '--workdir=FOLDER/run'], ''),
  'read-only workdir': (
    [_PRETRAIN, _WORKDIR],
    'raise OSError(30, "Read-only file system", os.path.abspath(workdir))',
  ),
  'another path': (
    [_PRETRAIN, _WORKDIR],
    'raise OSError(13, "Permission denied", "/data/a.jpg")',
  ),
  'diverged': (
    [_PRETRAIN, _WORKDIR],
    "raise errors.NonFiniteError('loss is nan')",
  ),
  'read error': ([_PRETRAIN, _WORKDIR], "raise errors.ReadError('no disk')"),
  'traceback': ([_PRETRAIN, _WORKDIR, '--v=1'], "raise ValueError('wrong')"),
  'bug': ([_PRETRAIN, _WORKDIR], "raise TypeError('a bug')"),
  'keys': (
    [_PRETRAIN, '--print_config=seed', '--config.seed=7', '--v=0'],
    _SHOW,
  ),
  'all keys': ([_PRETRAIN, '--print_config', '--config.seed=7'], _SHOW),
  'no memory': (
    [_PRETRAIN, _WORKDIR],
    _NO_MEMORY.format('RESOURCE_EXHAUSTED'),
  ),
  'same config': ([_PRETRAIN, _WORKDIR], _OPTIONS),
  'changed config': (
    [_PRETRAIN, _WORKDIR, '--allow_config_change'],
    _OPTIONS,
  ),
  'no cache': ([_PRETRAIN, _WORKDIR, '--compilation_cache=none'], _OPTIONS),
  'empty cache': ([_PRETRAIN, _WORKDIR, '--compilation_cache='], _OPTIONS),
  'restart of an evaluation': (
    [_PRETRAIN, _WORKDIR, '--eval_only', '--restart'],
    _OPTIONS,
  ),
  'deterministic': (
    [_PRETRAIN, _WORKDIR, '--deterministic'],
    'print(os.environ["XLA_FLAGS"].split()[-1])',
  ),
  'one cache': ([_PRETRAIN, _WORKDIR, '--compilation_cache=/tmp/c'], _OPTIONS),
  'preempted': (
    [_PRETRAIN, _WORKDIR],
    'raise errors.PreemptedError("SIGTERM: stopped after step 3")',
  ),
  'host lost': (
    [_PRETRAIN, _WORKDIR],
    'raise errors.HostLostError("process 1 left")',
  ),
  'disk full': ([_PRETRAIN, _WORKDIR], 'raise errors.SaveError("disk full")'),
  'two of three flags': (
    [_PRETRAIN, _WORKDIR, '--num_processes=2', '--process_id=0'],
    _OPTIONS,
  ),
  'ledger on a CPU': ([_QUICKSTART, _WORKDIR, '--ledger=FOLDER/l'], 'print(1)'),
  'stages': (
    [_QUICKSTART, _WORKDIR, '--config.stages.scratch.total_steps=7'],
    _SHOW,
  ),
}


@pytest.fixture(scope='module')
def commands(command, tmp_path_factory):
  """Name -> the exit code and the output of the command."""
  folder = tmp_path_factory.mktemp('commands')
  (folder / 'link').symlink_to(folder / 'nowhere')
  (folder / 'run' / 'train.log').mkdir(parents=True)
  found = {}
  for name, (words, code) in COMMANDS.items():
    words = [word.replace('FOLDER', str(folder)) for word in words]
    done = (
      command('tests.main_with', code, *words)
      if code
      else command('vit_jax.main', *words)
    )
    found[name] = done.returncode, done.stdout + done.stderr
  return found


@pytest.mark.parametrize(
  'name, message',
  [
    (
      'no flags',
      '--config is missing: Config file, with its argument: configs',
    ),
    ('no workdir', '--workdir is missing: Directory of the run: checkpoints'),
    ('no config', '--config is missing: Config file, with its argument'),
    ('unknown flag', "Unknown command line flag 'wrokdir'. Did you mean: work"),
    ('no flag', "['extra'] belong to no flag (see --help)."),
    (
      'unknown key',
      '--config.model.widht is not a key of this config. Did you mean'
      ' model.width',
    ),
    ('no weights', 'init.checkpoint is not set: this config starts from'),
    (
      'file as workdir',
      f'{ROOT}/setup.py/run: Not a directory.',
    ),
    ('another path', '/data/a.jpg: Permission denied. This process may not'),
    ('restart of an evaluation', '--restart starts a training run over'),
    ('diverged', 'loss is nan'),
    ('read error', 'no disk'),
  ],
)
def test_what_the_user_can_mend_is_one_message(commands, name, message):
  code, output = commands[name]
  assert code == 1
  assert output.startswith(f'error: {message}'), output
  assert output.find('\n') == len(output) - 1


@pytest.mark.parametrize(
  'name, words',
  [
    ('link as workdir', ['File exists', 'link']),
    ('below a link', ['No such file', 'link']),
    ('long workdir', ['xxx', 'File name too long']),
    ('folder as log', ['train.log', 'Move the directory away']),
    ('read-only workdir', ['Read-only', 'Choose a path that can be written']),
  ],
)
def test_what_is_wrong_with_the_work_directory(commands, name, words):
  code, output = commands[name]
  assert code == 1
  assert output.startswith('error: /')
  assert output.find('\n') == len(output) - 1
  assert 'Errno' not in output
  for word in words:
    assert word in output


def test_tracebacks(commands):
  code, output = commands['traceback']
  assert code == 1
  assert output.endswith('\nValueError: wrong\nerror: wrong\n'), output
  assert 'Traceback (most recent call last)' in output
  code, output = commands['bug']
  assert code == 1
  assert 'Traceback (most recent call last)' in output
  assert output.endswith('\nTypeError: a bug\n'), output


def test_too_little_memory_is_one_message(commands):
  code, output = commands['no memory']
  assert code == 1
  first, second = output.splitlines()
  assert first == (
    'error: A device has not enough memory: Out of memory allocating 8 bytes.'
  )
  assert second.startswith('To use less memory, set --config.model.remat=')


def test_overrides(commands):
  code, output = commands['stages']
  assert code == 0, output
  assert json.loads(output)['stages']['scratch']['total_steps'] == 7


def test_runs_on_a_cpu_say_that_they_get_no_line(commands):
  code, output = commands['ledger on a CPU']
  assert code == 0
  assert output.count('no plan is for a CPU') == 1


def test_version_is_what_a_bug_report_should_say(commands):
  code, output = commands['version']
  assert code == 0, output
  lines = dict(line.split(' ', 1) for line in output.splitlines())
  assert lines['vit_jax'].startswith(f'{vit_jax.__version__}, commit ')
  assert lines['jax'] == jax.__version__
  assert lines['numpy'] == np.__version__
  assert list(lines)[:3] == ['vit_jax', 'python', 'jax']
  assert list(lines)[-1] == 'system'


def test_the_keys_are_listed_without_a_workdir(commands):
  code, output = commands['keys']
  assert code == 0, output
  assert output.splitlines()[3] == 'seed = 7  [command line]'
  meaning = ' '.join(output.split())
  assert 'The seed of initial parameters, shuffling,' in meaning
  assert 'at least 0 and below 2**32.' in meaning
  code, output = commands['all keys']
  assert code == 0, output
  assert '\ndata.batch_size = 64  [config file]\n' in output


def test_a_changed_config_must_be_allowed(commands):
  cache = ROOT / 'nowhere/compilation_cache'
  assert commands['same config'] == (0, f'False False {cache}\n')
  assert commands['changed config'] == (0, f'True False {cache}\n')


def test_where_compiled_programs_are_kept(commands):
  assert commands['no cache'] == (0, 'False False None\n')
  assert commands['empty cache'] == (0, 'False False None\n')
  assert commands['one cache'] == (0, 'False False /tmp/c\n')


def test_programs_for_gpus_can_be_deterministic(commands):
  option = '--xla_gpu_deterministic_ops=true\n'
  assert commands['deterministic'] == (0, option)


def test_processes_are_told_of_each_other_by_three_flags(commands):
  code, output = commands['two of three flags']
  assert code == 1
  assert 'coordinator_address' in output


@pytest.mark.parametrize(
  ('name', 'code', 'message'),
  [
    ('preempted', 75, 'ended: SIGTERM: stopped after step 3\n'),
    ('host lost', 76, 'ended: process 1 left\n'),
    ('disk full', 1, 'error: disk full\n'),
  ],
)
def test_exit_codes_say_whether_to_start_again(commands, name, code, message):
  assert commands[name] == (code, message)


def test_help_teaches_by_examples(commands):
  code, output = commands['help']
  assert code == 0
  assert 'python -m vit_jax.main --config=FILE --workdir=DIR' in output
  assert '--config=configs/quickstart.py' in output
  for flag in (
    'config',
    'workdir',
    '[no]allow_config_change',
    '[no]print_config',
  ):
    assert f'\n  --{flag}: ' in output


@pytest.mark.gate
def test_a_run_without_tensorflow(tmp_path):
  fake = tmp_path / 'tensorflow'
  fake.mkdir()
  (fake / '__init__.py').write_text(
    f'open({str(tmp_path / "imported")!r}, "w").close()\n'
    'raise ImportError("This test forbids TensorFlow.")\n'
  )
  arguments = (
    *(_PRETRAIN, f'--workdir={tmp_path / "run"}', '--config.total_steps=2'),
    *('--config.model.width=16', '--config.model.heads=2'),
    *('--config.model.depth=1', '--config.model.mlp_dim=32'),
    *('--config.image_size=(8, 8)', '--config.data.dataset=digits:01'),
    *('--config.data.preprocess=resize', '--config.schedule.warmup_steps=1'),
    *('--config.mesh.data=1', '--config.data.batch_size=8'),
  )
  result = run_new(
    *(sys.executable, '-m', 'vit_jax.main', *arguments),
    PYTHONPATH=str(tmp_path),
  )
  assert 'step 2/2' in result.stderr
  assert (tmp_path / 'run' / 'DONE').read_text() == '2\n'
  # The TensorBoard file was written without TensorFlow, too.
  assert list((tmp_path / 'run').rglob('events.out.tfevents.*'))
  assert not (tmp_path / 'imported').exists()

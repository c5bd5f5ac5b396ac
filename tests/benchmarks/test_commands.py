"""Guards: the benchmark commands' help, messages, tables and JSON."""

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gate

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = sorted(
  path.stem
  for path in (ROOT / 'benchmarks').glob('*.py')
  if path.stem not in ('__init__', 'report')
)

# Runs each command line in a fork of a process that has imported everything,
# because imports take seconds.
_DRIVER = """
import json, os, runpy, sys, traceback
from benchmarks.measure import (
  attention, checkpoint, evaluation, gpu_vs_timm, input, start_up, train_step)

for i, (program, arguments) in enumerate(json.load(sys.stdin)):
  pid = os.fork()
  if pid:
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    continue
  for stream, name in ((1, 'out'), (2, 'err')):
    file = os.open(f'{sys.argv[1]}/{i}.{name}', os.O_CREAT | os.O_WRONLY)
    os.dup2(file, stream)
  sys.argv = [program, *arguments]
  code = 0
  try:
    runpy.run_module(
      f'benchmarks.{program}', run_name='__main__', alter_sys=True)
  except SystemExit as exit:
    code = exit.code
  except BaseException:
    traceback.print_exc()
    code = 1
  if isinstance(code, str):
    print(code, file=sys.stderr)
    code = 1
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code or 0)
"""
_TINY = [
  '--config=configs/pretrain.py:ViT-Ti/16,imagenet2012',
  *('--config.image_size=(32, 32)', '--config.model.depth=1'),
  *('--config.model.width=12', '--config.model.mlp_dim=24'),
  *('--config.data.batch_size=8', '--rounds=1'),
  *('--config.mesh.data=2', '--config.mesh.fsdp=1'),
]
COMMANDS = {
  **{f'{name} help': (name, ['--help']) for name in PROGRAMS},
  'step': (
    'train_step',
    [*_TINY, '--steps=1', '--against=plain', '--peak_tflops=1'],
  ),
  'file': (
    'attention',
    [
      *('--tokens=3,5', '--batch=1', '--heads=1', '--head_width=4'),
      *('--rounds=2', '--repeats=1', '--implementations=flax,jax.cudnn'),
      '--json=FOLDER/new/found.json',
    ],
  ),
  'no config': ('train_step', []),
  'wrong key': ('train_step', [*_TINY, '--against=model.scam=true']),
  'wrong tokens': ('attention', ['--tokens=0']),
  'wrong setting': ('input', ['--images=1', '--setting=fast']),
}


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory):
  """Returns name -> (exit code, stdout, stderr), and the folder for files."""
  folder = tmp_path_factory.mktemp('commands')
  commands = [
    (program, [a.replace('FOLDER', str(folder)) for a in arguments])
    for program, arguments in COMMANDS.values()
  ]
  done = subprocess.run(
    [sys.executable, '-c', _DRIVER, str(folder)],
    input=json.dumps(commands),
    cwd=ROOT,
    capture_output=True,
    check=True,
    text=True,
  )
  codes = [int(line) for line in done.stdout.split()]
  return {
    name: (
      code,
      (folder / f'{i}.out').read_text(),
      (folder / f'{i}.err').read_text(),
    )
    for i, (name, code) in enumerate(zip(COMMANDS, codes, strict=True))
  }, folder


@pytest.mark.parametrize('name', PROGRAMS)
def test_help(outcomes, name):
  code, out, _ = outcomes[0][f'{name} help']
  assert code == 0
  assert f'python -m benchmarks.{name}' in out
  assert '--json: File for the results' in out
  assert '--rounds: ' in out


def test_train_step(outcomes):
  code, out, err = outcomes[0]['step']
  assert code == 0, err
  found = json.loads(out)
  assert list(found) == ['benchmark', 'setting', 'environment', 'results']
  assert found['benchmark'] == 'train_step'
  assert found['setting']['image_size'] == [32, 32]
  assert found['setting']['config']['model']['depth'] == 1
  assert found['environment']['device_kind'] == 'cpu'
  assert list(found['results']) == ['config', 'plain']
  ours, plain = found['results'].values()
  for result in (ours, plain):
    rate = result['images_per_sec']
    assert result['batch_size'] == 8
    assert rate == pytest.approx(8000 / result['step_ms']['median'])
    assert result['images_per_sec_per_device'] == pytest.approx(rate / 2)
    assert result['ratio'] == pytest.approx(ours['images_per_sec'] / rate)
    assert result['compile_sec'] > 0
    # These are the parameters, Adam's two moments and the gradient in float32.
    assert result['memory_gib'] * 2**30 > 16 * result['params']
  # The model has 4 patches of 768 values, D = 12, 5 tokens, an MLP of 24, and a
  # hidden layer before the 1000 classes.
  macs = 4 * 768 * 12 + 5 * (4 * 144 + 2 * 12 * 24) + 2 * 25 * 12 + 144 + 12_000
  assert ours['params'] == plain['params']
  assert ours['mfu'] == pytest.approx(
    ours['images_per_sec'] * 6 * macs / (2 * 1e12)
  )
  head, first, _ = err.strip().splitlines()[-3:]
  assert head.split()[:5] == ['ms', 'spread', 'images/s', '/device', 'MFU']
  assert first.split()[:2] == ['config', f'{ours["step_ms"]["median"]:.1f}']


def test_json_file(outcomes):
  results, folder = outcomes
  code, out, err = results['file']
  assert code == 0, err
  assert not out
  found = json.loads((folder / 'new' / 'found.json').read_text())
  assert list(found['results']) == ['flax, 3 tokens', 'flax, 5 tokens']
  assert 'left out: jax.cudnn, 3 tokens: ' in err
  assert list(found['setting']['left_out']) == [
    'jax.cudnn, 3 tokens',
    'jax.cudnn, 5 tokens',
  ]


@pytest.mark.parametrize(
  'name, message',
  [
    ('no config', 'error: --config is missing'),
    ('wrong key', "error: 'model.scam=true': there is no key 'scam'"),
    ('wrong tokens', 'error: --tokens=0: expected positive numbers'),
    ('wrong setting', "error: --setting=fast: 'fast' must be one of"),
  ],
)
def test_errors(outcomes, name, message):
  code, out, err = outcomes[0][name]
  assert code == 1
  assert err.strip().splitlines()[-1].startswith(message)
  assert not out

"""Guards: the commands and Python blocks of the documentation are right.

A new block or command needs no change here.
"""

import concurrent.futures
import importlib.util
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests import fenced

# Programs that tests/launch checks in launch/README.md.
CLOUD = {'gcloud', 'kubectl', 'xpk', 'sbatch', 'scancel'}
SHELL = {'.', 'cd', 'curl', 'echo', 'eval', 'export', 'find', 'git', 'open'}
SHELL |= {'pip', 'sphinx-build', 'ssh-add'}
SHELL_BLOCKS = dict(fenced.blocks('sh'))
PYTHON_BLOCKS = dict(fenced.blocks('python'))


def problems(commands):
  """Returns what is wrong with each command, each tried in a new process."""
  # The processes are copies of one that has imported what takes long.
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(
    ['vit_jax.training.train', 'vit_jax.predict.predictor']
  )
  with concurrent.futures.ProcessPoolExecutor(
    2, mp_context=context, max_tasks_per_child=1
  ) as pool:
    return list(pool.map(fenced.dry_run, commands))


def test_commands_parse_and_their_configs_are_valid():
  found = {
    tuple(own): place
    for place, block in SHELL_BLOCKS.items()
    for words in fenced.commands(block)
    for own in fenced.ours(words)
  }
  assert len(found) > 40
  wrong = [
    f'{found[words]} python -m {" ".join(words)}: {problem}'
    for words, problem in zip(found, problems(found), strict=True)
    if problem
  ]
  assert wrong == [], '\n'.join(wrong)


CONFIG = '--config=configs/pretrain.py:ViT-B/16,imagenet2012'


@pytest.fixture(scope='module')
def refused():
  lines = {
    'flag': f'vit_jax.main {CONFIG} --workdirs=a',
    'missing': 'vit_jax.sweep --workdir=a',
    'key': f'vit_jax.main {CONFIG} --config.data.batch=8',
    'value': f'vit_jax.main {CONFIG} --config.data.batch_size=many',
    'invalid': f'vit_jax.main {CONFIG} --config.data.batch_size=-8',
    'file': 'vit_jax.main --config=configs/pretrains.py:ViT-B/16,digits',
    'model': 'vit_jax.main --config=configs/pretrain.py:ViT-Q/16,digits',
    'module': 'vit_jax.mains --workdir=a',
    'sweep': 'vit_jax.sweep --sweep=configs/sweeps/digit.py --workdir=a',
    'word': f'vit_jax.main {CONFIG} --workdir=a b',
  }
  found = problems([line.split() for line in lines.values()])
  return dict(zip(lines, found, strict=True))


@pytest.mark.parametrize(
  'name, said',
  [
    ('flag', "Unknown command line flag 'workdirs'"),
    ('missing', '--sweep is missing'),
    ('key', 'config.data.batch is not a key'),
    ('value', "'many'"),
    ('invalid', 'batch_size'),
    ('file', 'pretrains.py'),
    ('model', 'ViT-Q/16'),
    ('module', 'vit_jax.mains'),
    ('sweep', 'digit.py'),
    ('word', "'b'"),
  ],
)
def test_a_misspelt_command_is_noticed(refused, name, said):
  assert said in refused[name]


@pytest.mark.parametrize('place', SHELL_BLOCKS)
def test_shell_block(place):
  block = SHELL_BLOCKS[place]
  parsed = subprocess.run(
    ['bash', '-n'], input=block, capture_output=True, text=True
  )
  assert parsed.stderr == ''
  extras = re.findall(r"'\.\[([\w,]+)\]'", block)
  metadata = (fenced.ROOT / 'setup.py').read_text()
  for extra in ','.join(extras).split(',') if extras else ():
    assert f"  '{extra}': [" in metadata, extra
  for words in fenced.commands(block):
    for file in re.findall(r'^-r (\S+)', ' '.join(words), re.MULTILINE):
      assert (fenced.ROOT / file).exists(), file
    program, *rest = words
    if program in ('python', 'python3'):
      if rest[0] == '-m':
        assert importlib.util.find_spec(rest[1]), rest[1]
      elif rest[0] == '-c':
        compile(rest[1], place, 'exec')
      else:  # tests/launch checks the flags.
        assert (fenced.ROOT / rest[0]).exists(), rest[0]
    elif place.startswith('launch/'):
      assert program in CLOUD | SHELL, program
    else:
      assert program in SHELL, program


@pytest.mark.parametrize('place', PYTHON_BLOCKS)
def test_python_block(place):
  block = PYTHON_BLOCKS[place]
  checked = subprocess.run(
    [sys.executable, '-m', 'ruff', 'check', '--select=E9,F', '-q', '-']
    + ['--stdin-filename', f'{place}.py', '--isolated'],
    input=block,
    capture_output=True,
    text=True,
  )
  assert checked.returncode == 0, checked.stdout
  assert fenced.wrong_names(block) == []


@pytest.mark.gate
def test_the_examples_of_additions_run(tmp_path):
  found = [
    block
    for place, block in PYTHON_BLOCKS.items()
    if place.startswith('docs/extend.md')
  ]
  script = '\n'.join(found)
  script += """
assert found['test/accuracy'] > 0.9 and found['head/norm'] > 0
assert 'CNN-8 with features=4' in repr(model)
assert model.features(image).shape == (1, 64)
logits = model.predict(image).logits
vit_jax.interop.save_npz('a.npz', model.params, model.module, image_size=8)
assert (vit_jax.load('a.npz').predict(image).logits == logits).all()
config.init.checkpoint, config.init.new_head = 'runs/stripes', False
config.total_steps = 5
assert train.train_and_evaluate(config, 'runs/tuned')['test/accuracy'] > 0.9
"""
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(fenced.ROOT)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
  'line',
  [
    'from vit_jax import interops',
    'from vit_jax import models\nmodels.built("ViT-B/16", num_classes=2)',
    'from vit_jax import models\nmodels.build("ViT-B/16", classes=2)'
    '\nmodels.names(2)',
    'import vit_jax\nm = vit_jax.load("runs/birds")\nm.classify("a.jpg")',
    'import vit_jax\nvit_jax.load("a", image_sizes=8)',
    'import vit_jax\nvit_jax.load("a").predict("b").classs',
  ],
)
def test_a_misspelt_name_is_noticed(line):
  assert fenced.wrong_names(line)


def test_all_pages_with_commands_are_read():
  assert pathlib.Path('benchmarks/README.md') in fenced.PAGES
  assert {place.partition(':')[0] for place in SHELL_BLOCKS} >= {
    'README.md',
    'docs/train.md',
    'launch/README.md',
  }

"""Guards: the commands and Python blocks of the documentation are right.

A new block or command needs no change here.
"""

import importlib.util
import json
import re
import sys

import pytest

from tests import commands
from tests.docs import fenced
from tests.docs.test_public import COMMANDS

# Programs that tests/launch checks in launch/README.md.
CLOUD = {'gcloud', 'kubectl', 'xpk', 'sbatch', 'scancel'}
SHELL = {'.', 'cd', 'curl', 'echo', 'eval', 'export', 'find', 'git', 'open'}
SHELL |= {'mkdir', 'pip', 'sphinx-build', 'ssh-add'}
SHELL_BLOCKS = dict(fenced.blocks('sh'))
PYTHON_BLOCKS = dict(fenced.blocks('python'))


CONFIG = '--config=configs/pretrain.py:ViT-B/16,imagenet2012'
# A misspelt command -> what is said of it.
MISSPELT = {
  f'vit_jax.main {CONFIG} --workdirs=a': (
    "Unknown command line flag 'workdirs'"
  ),
  'vit_jax.sweep --workdir=a': '--sweep is missing',
  f'vit_jax.main {CONFIG} --config.data.batch=8': 'config.data.batch is not',
  f'vit_jax.main {CONFIG} --config.data.batch_size=many': "'many'",
  f'vit_jax.main {CONFIG} --config.data.batch_size=-8': 'batch_size',
  'vit_jax.main --config=configs/pretrain.py:ViT-Q/16,digits': 'ViT-Q/16',
  'vit_jax.mains --workdir=a': 'vit_jax.mains',
  'vit_jax.sweep --sweep=configs/sweeps/digit.py --workdir=a': 'digit.py',
  f'vit_jax.main {CONFIG} --workdir=a b': "'b'",
}


def test_commands_are_right(command):
  found = {
    tuple(own): place
    for place, block in SHELL_BLOCKS.items()
    for words in fenced.commands(block)
    for own in fenced.ours(words)
  }
  assert len(found) > 40
  helps = {(command, '--help'): 'its own help' for command in COMMANDS}
  right = found | helps
  misspelt = [tuple(line.split()) for line in MISSPELT]
  every = [*right, *misspelt]
  done = command('tests.docs.fenced', stdin=json.dumps(every))
  assert done.returncode == 0, done.stderr
  said = dict(zip(every, json.loads(done.stdout), strict=True))
  wrong = [
    f'{right[words]} python -m {" ".join(words)}: {said[words]}'
    for words in right
    if said[words]
  ]
  assert wrong == [], '\n'.join(wrong)
  for words, problem in zip(misspelt, MISSPELT.values(), strict=True):
    assert problem in said[words]


@pytest.mark.parametrize('place', SHELL_BLOCKS)
def test_shell_block(place):
  block = SHELL_BLOCKS[place]
  assert commands.run_new('bash', '-n', stdin=block).stderr == ''
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
  commands.run_new(
    *(sys.executable, '-m', 'ruff', 'check', '--select=E9,F', '-q', '-'),
    *('--stdin-filename', f'{place}.py', '--isolated'),
    stdin=block,
  )
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
  where = dict(cwd=tmp_path, PYTHONPATH=str(fenced.ROOT))
  commands.run_new(sys.executable, '-c', script, **where)


@pytest.mark.parametrize(
  'line',
  [
    'from vit_jax import interops',
    'from vit_jax import models\nmodels.built("ViT-B/16", num_classes=2)',
    'from vit_jax import models\nmodels.build("ViT-B/16", classes=2)'
    '\nmodels.names(2)',
    'import vit_jax\nvit_jax.load("a", image_sizes=8)',
  ],
)
def test_a_misspelt_name_is_noticed(line):
  assert fenced.wrong_names(line)

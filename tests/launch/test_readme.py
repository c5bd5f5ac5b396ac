"""Guards: the commands in launch/README.md and the programs' help are valid."""

import pathlib
import re
import shlex

import pytest

from tests.launch import printed, stand_in
from vit_jax.launch import gke, tpu_vm

README = pathlib.Path(__file__).parents[2] / 'launch' / 'README.md'
PROGRAMS = {'launch/tpu_vm.py': tpu_vm, 'launch/gke.py': gke}


def commands():
  """Yields the lines that start a launch program, with their continuations."""
  texts = [README.read_text(), tpu_vm.__doc__, gke.__doc__]
  for text in texts:
    text = text.replace('\\\n', ' ').replace('$IMAGE', 'r/i:1')
    text = text.replace('$I', 'r/i:1').replace(
      '$S', '--cluster=vit --zone=us-east5-a --accelerator=v6e-16'
    )
    yield from re.findall(r'^ *python (launch/\w+\.py .*)', text, re.MULTILINE)


@pytest.mark.parametrize('line', sorted(set(commands())))
def test_command(cloud, capfd, line):
  program, *words = shlex.split(line, comments=True)
  own, _, rest = ' '.join(words).partition(' -- ')
  PROGRAMS[program].main(
    [*own.split(), '--dry_run', *(['--', *rest.split()] if rest else [])]
  )
  assert re.search('^(gcloud|kubectl) ', capfd.readouterr().out, re.MULTILINE)


def test_all_commands_are_shown():
  shown = {tuple(line.split()[:2]) for line in commands()}
  for program, module in PROGRAMS.items():
    for name in {*module.COMMANDS} - {'manifest', 'status'}:
      assert (program, name) in shown, name


@pytest.mark.parametrize('line', printed.of_readme())
def test_commands_of_other_programs_are_right(line):
  """Checks with reference.py; test_real_tools.py checks with the programs."""
  program, *words = shlex.split(line)
  assert stand_in.check(program, words, environment=True) == ''

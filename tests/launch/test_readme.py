"""The commands of launch/README.md and of the programs' help are right."""

import pathlib
import re
import shlex

import pytest

from vit_jax.launch import gke, tpu_vm

README = pathlib.Path(__file__).parents[2] / 'launch' / 'README.md'
PROGRAMS = {'launch/tpu_vm.py': tpu_vm, 'launch/gke.py': gke}


def commands():
  """The lines that start a program, with their continuations."""
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

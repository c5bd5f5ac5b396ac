"""A stand-in for the programs that the launch programs start."""

import contextlib
import io
import pathlib
import shlex
import subprocess
import types

import pytest

from vit_jax.launch import gke, shell, tpu_vm

ROOT = pathlib.Path(__file__).parents[2]
PLACE = '--zone=us-central2-b --project=my-project'
TPU = 'gcloud compute tpus'
SSH = f'{TPU} tpu-vm ssh b16 {PLACE} --worker=all --quiet'
QUEUE = f'{TPU} queued-resources list'
NODES = f'{TPU} tpu-vm list'
SCRIPTS = 'vit_jax_home/code/launch/worker'
STATUS = f'{SSH} --command=if [ -f {SCRIPTS}/status.sh'
RUN = '--config=configs/pretrain.py:ViT-B/16,imagenet2012'
RUN += ' --workdir=gs://bucket/runs/b16'


class Cloud:
  """Records command lines, and answers them."""

  def __init__(self):
    self.lines = []
    self._answers = {}

  def answer(self, beginning, *texts, code=0):
    """Sets the outputs of lines with this beginning; the last one repeats."""
    self._answers[beginning] = [*texts] or [''], code

  def slice(self, *states, node='READY', health='HEALTHY'):
    """Sets the states of the request at each look; None: there is none."""
    row = '[{{"name": "x/b16", "state": {}, "health": "{}"}}]'
    self.answer(
      QUEUE,
      *(row.format(f'{{"state": "{s}"}}', '') if s else '[]' for s in states),
    )
    self.answer(NODES, row.format(f'"{node}"', health) if node else '[]')

  @property
  def acts(self):
    """The lines that change something."""
    looks = (' list ', 'status.sh', ' describe ')
    return [x for x in self.lines if not any(look in x for look in looks)]

  def run(self, command, *, stdout, **_):
    line = shlex.join(command)
    self.lines.append(line)
    found = [x for x in self._answers if line.replace("'", '').startswith(x)]
    texts, code = self._answers[found[-1]] if found else ([''], 0)
    text = texts.pop(0) if len(texts) > 1 else texts[0]
    return subprocess.CompletedProcess(command, code, text if stdout else '')


@pytest.fixture
def cloud(monkeypatch):
  monkeypatch.setenv('CLOUDSDK_CORE_PROJECT', 'my-project')
  monkeypatch.setenv('CLOUDSDK_COMPUTE_ZONE', 'us-central2-b')
  monkeypatch.chdir(ROOT)
  cloud = Cloud()
  programs = types.SimpleNamespace(run=cloud.run, PIPE=subprocess.PIPE)
  monkeypatch.setattr(shell, 'subprocess', programs)
  return cloud


def call(line, program=tpu_vm):
  """Runs a command of a program; returns its error, '' after a success."""
  with contextlib.redirect_stderr(io.StringIO()) as said:
    try:
      program.main(shlex.split(line))
    except SystemExit as error:
      return str(error.code) if error.code != 2 else said.getvalue()
  return ''


def dry(line, program=tpu_vm):
  """Runs a command with --dry_run."""
  own, dashes, rest = line.partition(' -- ')
  return call(f'{own} --dry_run{dashes}{rest}', program)


PROGRAMS = {'launch/tpu_vm.py': tpu_vm, 'launch/gke.py': gke}

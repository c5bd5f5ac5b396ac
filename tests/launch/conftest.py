"""Fixtures with stand-ins for gcloud and kubectl, which come first on PATH."""

import contextlib
import io
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.launch import bucket, slice_b16, stand_in
from tests.launch import machine as machine_lib
from vit_jax.launch import workers

HERE = pathlib.Path(__file__).parent


class Cloud:
  """Records the commands that the stand-ins get, and sets their answers."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.answers = {}

  def answer(self, beginning: str, *answers, code: int = 0) -> None:
    """Sets the output of commands with this beginning, one answer per call.

    Args:
      beginning: the beginning of the command line.
      answers: texts, or values that are printed as JSON; the last one repeats.
      code: the exit code of all calls.
    """
    self.answers[beginning] = [
      (a if isinstance(a, str) else json.dumps(a), code)
      for a in answers or ('',)
    ]
    (self.folder / 'answers').write_text(json.dumps(self.answers))

  def fail(self, call: int | None = None, *, done: bool | str = False) -> None:
    """Lets a call fail, counted from now; None: lets no call fail.

    Args:
      call: 0 is the next call.
      done: whether the cloud has done what the failed call asked for;
        'interrupted': Ctrl-C ends the call.
    """
    fails = call is not None and dict(call=len(self.calls) + call, done=done)
    (self.folder / 'fails').write_text(json.dumps(fails))

  @property
  def things(self) -> dict[str, dict[str, dict]]:
    """What is in the cloud: kind -> name -> what gcloud says of it."""
    things = json.loads((self.folder / 'things').read_text())
    return {kind: rows for kind, rows in things.items() if rows}

  @things.setter
  def things(self, things: dict[str, dict[str, dict]]) -> None:
    (self.folder / 'things').write_text(json.dumps(things))

  @property
  def calls(self) -> list[dict]:
    file = self.folder / 'calls'
    if not file.exists():
      return []
    calls = [json.loads(line) for line in file.read_text().splitlines()]
    assert [c['problem'] for c in calls if c['problem']] == []
    return calls

  @property
  def lines(self) -> list[str]:
    """The command lines so far, all of which the stand-ins accepted."""
    return [shlex.join(call['argv']) for call in self.calls]

  @property
  def acts(self) -> list[str]:
    """The command lines that do not only look."""
    return [line for line in self.lines if ' describe ' not in line]


def _in_this_process(run):
  """Returns a `subprocess.run` that calls the stand-ins without a process.

  A process takes 30 ms, and some tests have hundreds of calls.

  Args:
    run: does the same for all other programs.
  """

  def quick(command, *, input='', stdout=None, stderr=None, **options):
    program, *words = command
    if program not in ('gcloud', 'kubectl') or not shutil.which(program):
      return run(command, input=input, stdout=stdout, stderr=stderr, **options)
    output, error, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(input)
    try:
      with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(error),
      ):
        code = stand_in.main(program, words)
    finally:
      sys.stdin = before
    if not stdout:
      print(output.getvalue(), end='')
    return subprocess.CompletedProcess(
      command, code, output.getvalue(), error.getvalue()
    )

  return quick


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  folder = tmp_path / 'stand_in'
  folder.mkdir()
  (folder / 'answers').write_text('{}')
  for program in ('gcloud', 'kubectl'):
    file = folder / program
    file.write_text(
      f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S'
      f' {shlex.quote(str(HERE / "stand_in.py"))} {program} "$@"\n'
    )
    file.chmod(0o755)
  monkeypatch.setenv('PATH', f'{folder}{os.pathsep}{os.environ["PATH"]}')
  monkeypatch.setenv('STAND_IN', str(folder))
  monkeypatch.setenv('CLOUDSDK_CORE_PROJECT', 'my-project')
  monkeypatch.setenv('CLOUDSDK_COMPUTE_ZONE', 'us-central2-b')
  monkeypatch.setattr(subprocess, 'run', _in_this_process(subprocess.run))
  # The programs expect to run in the repository's root.
  monkeypatch.chdir(HERE.parents[1])
  cloud = Cloud(folder)
  cloud.things = {}
  cloud.fail()
  bucket.let_in(cloud, bucket.COMPUTE, bucket.POD)
  return cloud


@pytest.fixture
def offered(cloud):
  cloud.answer(slice_b16.TYPES, 'v3-8\nv4-8\nv4-32\n')
  cloud.answer(slice_b16.QUOTAS, [])
  cloud.answer(
    slice_b16.QUEUE, [slice_b16.queue_row('other', 'WAITING_FOR_RESOURCES')]
  )
  return cloud


@pytest.fixture
def archive(monkeypatch):
  """Replaces packing, which test_pack.py tests, by a constant."""
  pack = workers.pack

  def quick(shell, directory):
    if shell.dry_run:
      return pack(shell, directory)
    return 'ARCHIVE'

  monkeypatch.setattr(workers, 'pack', quick)


@pytest.fixture
def active(cloud, archive):
  """Provides a slice that is ready."""
  cloud.answer(slice_b16.QUEUE, [slice_b16.queue_row('b16', 'ACTIVE')])
  cloud.answer(slice_b16.NODES, [slice_b16.node_row('b16', 'READY')])
  cloud.things = slice_b16.B16
  return cloud


@pytest.fixture
def machine(tmp_path, monkeypatch):
  """Provides a machine: its HOME, with stand-ins for its programs on PATH."""
  folder = tmp_path / 'bin'
  folder.mkdir()
  for name, text in machine_lib.STAND_INS.items():
    (folder / name).write_text(f'#!/bin/bash\nset -eu\n{text}\n')
    (folder / name).chmod(0o755)
  monkeypatch.setenv('PATH', f'{folder}{os.pathsep}{os.environ["PATH"]}')
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('HOSTNAME', 't1v-n-1-w-3')
  monkeypatch.setenv('PYTHON', sys.executable)
  monkeypatch.delenv('VIT_JAX_HOME', raising=False)
  return tmp_path

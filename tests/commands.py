"""Runs commands of this code without importing it anew for each.

An import of JAX takes seconds, so each command runs in a fork of a process that
has imported what most commands need. That process has used no device.
"""

import atexit
import functools
import gc
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

ROOT = pathlib.Path(__file__).parents[1]


class Started:
  """A command that runs; `out` and `err` are what it has printed.

  Attributes:
    pid: the id of its process.
  """

  def __init__(self, ask, pid: int, folder: pathlib.Path):
    self.pid = pid
    self._ask, self._folder = ask, folder
    self._code: int | None = None

  @property
  def out(self) -> str:
    return (self._folder / 'stdout').read_text()

  @property
  def err(self) -> str:
    return (self._folder / 'stderr').read_text()

  def poll(self) -> int | None:
    """Returns the exit code, negative after a signal; None while it runs."""
    if self._code is None:
      self._code = self._ask(self.pid)
    return self._code

  def wait(self, limit: float) -> int:
    """Returns the exit code; kills it and fails after `limit` seconds."""
    end = time.monotonic() + limit
    while self.poll() is None:
      if time.monotonic() > end:
        self.send(signal.SIGKILL)
        raise AssertionError(f'It still ran. {self.err[-3000:]}')
      time.sleep(0.01)
    return self._code

  def send(self, number: signal.Signals) -> None:
    """Sends a signal, unless the process has ended."""
    if self.poll() is None:
      os.kill(self.pid, number)


class Commands:
  """Starts the process with the first command."""

  def __init__(self):
    self._server = None

  def __call__(
    self, module, *words, stdin='', cwd=ROOT, **variables
  ) -> subprocess.CompletedProcess:
    """Runs `python -m MODULE WORD...`, and returns its exit code and texts.

    Args:
      module: the name of the module.
      *words: its arguments, as any objects.
      stdin: the text that it reads.
      cwd: its working directory.
      **variables: environment variables to change.
    """
    with tempfile.TemporaryDirectory() as folder:
      started = self.start(
        *(folder, module, *words), stdin=stdin, cwd=cwd, **variables
      )
      code = started.wait(600)
      out, err = started.out, started.err
    return subprocess.CompletedProcess([module, *words], code, out, err)

  def start(
    self, folder, module, *words, stdin='', cwd=ROOT, **variables
  ) -> Started:
    """Starts `python -m MODULE WORD...`, and does not wait for its end.

    Args:
      folder: gets what it prints.
      module: see above, also for what follows.
      *words: see above.
      stdin: see above.
      cwd: see above.
      **variables: see above.
    """
    folder = pathlib.Path(folder)
    (folder / 'stdin').write_text(stdin)
    for name in ('stdout', 'stderr'):
      (folder / name).write_text('')
    request = [str(folder), str(cwd), variables, module, *map(str, words)]
    return Started(self._ask, self._ask(request), folder)

  def _ask(self, request):
    if self._server is None:
      self._server = subprocess.Popen(
        [sys.executable, '-m', 'tests.commands'],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
      )
    self._server.stdin.write(json.dumps(request) + '\n')
    self._server.stdin.flush()
    return json.loads(self._server.stdout.readline())

  def close(self) -> None:
    """Ends the process."""
    if self._server is not None:
      self._server.stdin.close()
      self._server.wait()
      self._server.stdout.close()


def write_program(path: pathlib.Path, text: str) -> pathlib.Path:
  """Writes a program for bash, as a stand-in; returns its path."""
  path.write_text(f'#!/bin/bash\n{text}\n')
  path.chmod(0o755)
  return path


def run_new(
  *words, code=0, stdin=None, cwd=ROOT, limit=600, **variables
) -> subprocess.CompletedProcess:
  """Runs a program in a process of its own, and asserts how it ends.

  Args:
    *words: the program and its arguments, as any objects.
    code: the exit code; None: any.
    stdin: the text that it reads.
    cwd: its working directory.
    limit: seconds.
    **variables: environment variables to change.
  """
  done = subprocess.run(
    [*map(str, words)],
    **dict(input=stdin, cwd=cwd, timeout=limit, env=os.environ | variables),
    **dict(capture_output=True, text=True),
  )
  assert code in (None, done.returncode), done.stdout + done.stderr
  return done


@functools.cache
def shared() -> Commands:
  """Returns the one that all tests use; `conftest.command` ends it."""
  return Commands()


def _run(folder, cwd, variables, module, *words) -> int:
  """Runs a command in this process; returns its exit code."""
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    mode = os.O_RDONLY if name == 'stdin' else os.O_CREAT | os.O_WRONLY
    os.dup2(os.open(f'{folder}/{name}', mode), number)
  sys.stdin = os.fdopen(0, closefd=False)
  os.chdir(cwd)
  os.environ.update(variables)
  sys.argv = [module, *words]
  try:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  except SystemExit as end:
    if isinstance(end.code, str):
      print(end.code, file=sys.stderr)
      return 1
    return end.code or 0
  except BaseException:
    traceback.print_exc()
    return 1
  return 0


def _serve() -> None:
  """Answers each line of stdin.

  A list is a command to start; the answer is the id of its process. A number is
  such an id; the answer is the exit code, or null while the process runs.
  """
  import sklearn.datasets  # noqa: F401

  import vit_jax.data.pipeline
  import vit_jax.interop
  import vit_jax.pages.drawing
  import vit_jax.paper.making
  import vit_jax.training.train  # noqa: F401

  gc.freeze()  # Collections then leave the memory that the forks share.
  # Python warns of modules that this process has imported.
  warnings.filterwarnings('ignore', module='runpy')
  for line in sys.stdin:
    request = json.loads(line)
    if isinstance(request, list):
      answer = os.fork()
      if not answer:
        code = _run(*request)
        atexit._run_exitfuncs()  # JAX has some.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Quicker than an exit that frees everything.
    else:
      pid, status = os.waitpid(request, os.WNOHANG)
      answer = os.waitstatus_to_exitcode(status) if pid else None
    print(json.dumps(answer), flush=True)
  os._exit(0)  # There is nothing to leave in order.


if __name__ == '__main__':
  _serve()

"""Runs commands of this code without importing it anew for each.

An import of JAX takes seconds, so each command runs in a fork of a process that
has imported what most commands need. That process has used no device.
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings

ROOT = pathlib.Path(__file__).parents[1]


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
    if self._server is None:
      self._server = subprocess.Popen(
        [sys.executable, '-m', 'tests.commands'],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
      )
    with tempfile.TemporaryDirectory() as folder:
      folder = pathlib.Path(folder)
      (folder / 'stdin').write_text(stdin)
      request = [str(folder), str(cwd), variables, module, *map(str, words)]
      self._server.stdin.write(json.dumps(request) + '\n')
      self._server.stdin.flush()
      code = int(self._server.stdout.readline())
      out, err = ((folder / name).read_text() for name in ('stdout', 'stderr'))
    return subprocess.CompletedProcess([module, *words], code, out, err)

  def close(self) -> None:
    """Ends the process."""
    if self._server is not None:
      self._server.stdin.close()
      self._server.wait()
      self._server.stdout.close()


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
  """Answers each line of stdin, a request, with the command's exit code."""
  import vit_jax.compare.drawing
  import vit_jax.data.pipeline
  import vit_jax.interop
  import vit_jax.paper.making
  import vit_jax.paper.overview
  import vit_jax.training.train  # noqa: F401

  # Python warns of modules that this process has imported.
  warnings.filterwarnings('ignore', module='runpy')
  for line in sys.stdin:
    pid = os.fork()
    if pid:
      code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
      print(code, flush=True)
      continue
    code = _run(*json.loads(line))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == '__main__':
  _serve()

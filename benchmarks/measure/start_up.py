"""Times launches of training."""

import contextlib
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

from benchmarks.measure import timing

_ROOT = pathlib.Path(__file__).parents[2]
# Lines of a launch's output that mark its progress.
MARKS = {
  'weights_sec': r'Fresh weights\.',
  'dispatched_sec': r'First step dispatched\.',
  'done_sec': r'First step done\.',
}


def launch(arguments: Sequence[str], timeout: float) -> dict[str, float]:
  """Starts `vit_jax.main` and watches it until its first step is done.

  Args:
    arguments: its flags; the work directory must be new.
    timeout: seconds until the launch counts as failed.

  Returns:
    Seconds from the launch to each of `MARKS`.

  Raises:
    ValueError: the process ended, or the timeout expired, before the first step
      was done.
  """
  start = time.monotonic()
  process = subprocess.Popen(
    [sys.executable, '-u', '-m', 'vit_jax.main', *arguments],
    cwd=_ROOT,
    env=os.environ | {'JAX_LOG_COMPILES': '1'},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,
  )
  found, printed = {}, []
  try:
    for seconds, line in _lines(process, start + timeout):
      printed.append(line)
      for name, pattern in MARKS.items():
        if name not in found and re.search(pattern, line):
          found[name] = seconds - start
      if 'done_sec' in found:
        break
  finally:
    # Killing the group also ends the processes that the launch started.
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
  if len(found) < len(MARKS):
    raise ValueError(
      f'vit_jax.main {" ".join(arguments)} ended, or did not finish its first'
      f' step within {timeout:g} s (--timeout). It reached'
      f' {list(found) or "nothing"}. The end of its output:\n'
      + ''.join(printed[-15:])
    )
  return found


def _lines(
  process: subprocess.Popen, deadline: float
) -> Iterator[tuple[float, str]]:
  """Yields (time, line) until the output ends or the deadline passes."""
  lines = queue.SimpleQueue()

  def read():
    # After the kill, stdout may be closed while this thread reads it.
    with contextlib.suppress(ValueError):
      for line in process.stdout:
        lines.put((time.monotonic(), line))
    lines.put(None)

  threading.Thread(target=read, daemon=True).start()
  while (left := deadline - time.monotonic()) > 0:
    try:
      item = lines.get(timeout=left)
    except queue.Empty:
      return
    if item is None:
      return
    yield item


def measure(
  arguments: Sequence[str], *, rounds: int, timeout: float
) -> dict[str, dict]:
  """Alternates launches with a cold and a warm compilation cache.

  Args:
    arguments: flags of `vit_jax.main` without --workdir, --compilation_cache.
    rounds: launches of each kind.
    timeout: seconds for a launch.

  Returns:
    `cold` and `warm`: each of `MARKS` (see `timing.statistics`), and the
    ratios of `timing.compare` for `dispatched_sec`.

  Raises:
    ValueError: a launch did not finish its first step.
  """
  with tempfile.TemporaryDirectory() as folder:
    caches = iter(range(2 * rounds))
    cache = None

    def turn(cold):
      nonlocal cache
      number = next(caches)
      if cold:
        cache = f'{folder}/cache_{number}'
      return launch(
        [
          *arguments,
          f'--workdir={folder}/run_{number}',
          f'--compilation_cache={cache}',
        ],
        timeout,
      )

    samples = timing.interleave(
      {'cold': lambda: turn(True), 'warm': lambda: turn(False)}, rounds
    )
  compared = timing.compare(
    {
      name: [sample['dispatched_sec'] for sample in found]
      for name, found in samples.items()
    }
  )
  return {
    name: {
      mark: timing.statistics([sample[mark] for sample in found])
      for mark in MARKS
    }
    | {k: v for k, v in compared[name].items() if 'ratio' in k}
    for name, found in samples.items()
  }

"""What the processes of a run must agree on before it begins."""

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

from vit_jax import distributed

# Seconds for a file of one machine to be seen by the others: network file
# systems remember for a while that something was not there.
_PATIENCE = 60.0


def check_same(facts: Mapping[str, Any]) -> None:
  """Raises ValueError where this process's facts are not those of process 0.

  Without it, hosts with unequal copies of a data set would train on a mixture
  of two orders, and nothing would tell.

  Args:
    facts: what must be equal, by name; JSON-able.
  """
  own = {name: json.dumps(value, default=str) for name, value in facts.items()}
  first = distributed.broadcast(own)
  differing = [
    f'  {name}: {_short(own[name])} here,'
    f' {_short(first.get(name))} in process 0'
    for name in own
    if own[name] != first.get(name)
  ]
  if differing:
    raise ValueError(
      f'Process {jax.process_index()} would not run what process 0 runs:\n'
      + '\n'.join(differing)
      + '\nAll hosts need the same config, and data sets with the same'
      ' examples in the same order.'
    )


def check_shared(workdir: epath.Path, patience: float = _PATIENCE) -> None:
  """Raises ValueError unless all processes see the same work directory.

  Args:
    workdir: exists on process 0's host.
    patience: seconds to wait for process 0's file.
  """
  if jax.process_count() == 1:
    return
  path = workdir / '.shared_by_all_hosts'
  token = distributed.broadcast(secrets.token_hex(8))
  if jax.process_index() == 0:
    path.write_text(token)
  distributed.any_true(False)  # It is written.
  seen = _wait_for(path, token, patience)
  distributed.any_true(not seen)  # All have looked.
  if jax.process_index() == 0:
    path.unlink()
  if not seen:
    raise ValueError(
      f'Process {jax.process_index()} does not see what process 0 writes to'
      f' --workdir={workdir}: it must be on storage that all hosts share, such'
      ' as gs://BUCKET/PATH or a network file system.'
    )


def _wait_for(path: epath.Path, token: str, patience: float) -> bool:
  end = time.monotonic() + patience
  while True:
    try:
      if path.read_text() == token:
        return True
    except OSError:
      pass  # Not there, or not yet.
    if time.monotonic() > end:
      return False
    time.sleep(0.2)


def _short(text: str | None) -> str:
  if text is None or len(text) < 100:
    return str(text)
  return (
    f'{text[:60]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:8]})'
  )

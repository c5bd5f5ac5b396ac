"""Installed versions, which processes compare and runs record.

This module imports nothing large, because processes compare versions before
they do anything else.
"""

import functools
import importlib.metadata
import importlib.util
import json
import platform
import re
from collections.abc import Iterable, Mapping

# The libraries that may affect a step's numbers, its speed or checkpoints.
LIBRARIES = (
  *('jax', 'jaxlib', 'libtpu'),
  *('jax-cuda12-plugin', 'jax-cuda12-pjrt'),
  *('jax-cuda13-plugin', 'jax-cuda13-pjrt'),
  *('flax', 'optax', 'orbax-checkpoint', 'numpy'),
  *('ml_dtypes', 'tensorstore', 'array_record'),
  *('opencv-python-headless', 'simplejpeg'),
)
# Lines that `freeze` writes: the first pattern is for pip, the others match
# comments.
_PIN = re.compile(r'([\w.-]+)==(\S+)')
_PYTHON = re.compile(r'# Python (\S+)')
_ELSEWHERE = re.compile(r'# ([\w.-]+) (\S+), not from an index: (.*)')
_SHOWN = 20
# The current and the former name of this code's own distribution.
_OWN = ('vit-paper-jax', 'vit-jax')


def versions() -> dict[str, str]:
  """Returns versions of Python and of the installed `LIBRARIES`, by name."""
  found = {'python': platform.python_version()}
  for name in LIBRARIES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found


# Cached, because a process may do many runs with the same installation.
@functools.cache
def freeze(*path: str) -> str:
  """Lists all installed distributions as a requirements file for pip.

  Args:
    path: folders to look in; by default `sys.path`.

  Returns:
    Lines: `# Python 3.12.1`; `name==version` for each distribution; comments
    for distributions that come from no index, such as editable installs. This
    code itself is left out.
  """
  place = {'path': list(path)} if path else {}
  pins, elsewhere, seen = [], [], set(_OWN)
  for one in importlib.metadata.distributions(**place):
    name = one.metadata.get('Name')
    # Python imports the first on the path; a broken distribution has no name.
    if not name or _normal(name) in seen:
      continue
    name = _normal(name)
    seen.add(name)
    if url := one.read_text('direct_url.json'):
      origin = _origin(url)
      elsewhere.append(f'# {name} {one.version}, not from an index: {origin}')
    else:
      pins.append(f'{name}=={one.version}')
  lines = [f'# Python {platform.python_version()}']
  return '\n'.join(lines + sorted(pins) + sorted(elsewhere)) + '\n'


def _origin(text: str) -> str:
  """Summarizes the content of direct_url.json (PEP 610)."""
  try:
    origin = json.loads(text)
    url = origin['url']
    commit = origin.get('vcs_info', {}).get('commit_id', '')
    editable = origin.get('dir_info', {}).get('editable', False)
  except (ValueError, KeyError, AttributeError):
    return 'unknown'
  # Removes a user name or token.
  url = re.sub(r'//[^/@]*@', '//', url)
  return url + f'@{commit}' * bool(commit) + ' (editable)' * bool(editable)


def require(*packages: str, extra: str, what: str = 'This') -> None:
  """Raises ValueError, with the command to type, if a package is missing.

  Args:
    *packages: the names by which they are imported.
    extra: the extra of setup.py that installs them.
    what: the thing that needs them.
  """
  missing = [name for name in packages if not importlib.util.find_spec(name)]
  if missing:
    raise ValueError(
      f'{what} needs {" and ".join(missing)}, which is not installed. Run'
      f' pip install "vit-paper-jax[{extra}]".'
    )


def parse(text: str) -> dict[str, str]:
  """Parses the text of `freeze` to name -> version; skips other lines."""
  found = {}
  for line in text.splitlines():
    if pin := _PIN.fullmatch(line):
      found[pin[1]] = pin[2]
    elif python := _PYTHON.fullmatch(line):
      found['python'] = python[1]
    elif other := _ELSEWHERE.fullmatch(line):
      found[other[1]] = f'{other[2]} ({other[3]})'
  return found


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
  """Lists changes, such as `jax 0.10.2 -> 0.12.0, libtpu none -> 0.0.50`.

  Args:
    old: name -> version, see `parse`.
    new: name -> version.

  Returns:
    '' if nothing differs. Python and `LIBRARIES` come first; only the first 20
    differences are listed, the rest are counted.
  """
  first = ['python', *map(_normal, LIBRARIES)]
  names = _sorted({*old, *new}, first)
  differing = [
    f'{name} {old.get(name, "none")} -> {new.get(name, "none")}'
    for name in names
    if old.get(name) != new.get(name)
  ]
  more = len(differing) - _SHOWN
  return ', '.join(differing[:_SHOWN]) + f' and {more} more' * (more > 0)


def _normal(name: str) -> str:
  """Returns a distribution's normalized name (PEP 503).

  `packaging` has this function too, but its import takes as long as all other
  imports of this module.
  """
  return re.sub(r'[-_.]+', '-', name).lower()


def _sorted(names: Iterable[str], first: list[str]) -> list[str]:
  return [name for name in first if name in names] + sorted(
    name for name in names if name not in first
  )

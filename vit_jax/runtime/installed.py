"""What is installed: versions, this code's commit, and the files it ships with.

This module imports only the standard library, because the programs in launch/
run where nothing else is installed.
"""

import contextlib
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Mapping

# The libraries that may affect a step's numbers, its speed or checkpoints.
LIBRARIES = (
  *('jax', 'jaxlib', 'libtpu'),
  *('jax-cuda12-plugin', 'jax-cuda12-pjrt'),
  *('jax-cuda13-plugin', 'jax-cuda13-pjrt'),
  *('flax', 'optax', 'orbax-checkpoint', 'numpy'),
  *('ml_dtypes', 'tensorstore', 'array_record'),
  *('opencv-python-headless', 'simplejpeg'),
)
# Lines of `freeze`: a pin, Python's version, or a comment.
_LINE = re.compile(r'([\w.-]+)==(\S+)|# (Python) (\S+)|# ([\w.-]+) (\S+), (.*)')
# The current and the former name of this code's own distribution.
_OWN = ('vit-paper-jax', 'vit-jax')
_ROOT = pathlib.Path(__file__).parents[2]
# Seconds: a repository on a network disk must not hold up a run.
_GIT_PATIENCE = 10.0
# Seconds. On a slice of several machines, the devices may wait for processes on
# the other machines, which do not run now.
_DEVICE_PATIENCE = 60.0
# Runs in its own process, because a driver may crash, hang or keep the memory.
_ASK = """
import jax
found = jax.devices()
print(len(found), found[0].platform, found[0].device_kind)
"""
# Flag -> the folder of the files that it can name without a path.
_FOLDERS = {
  'config': 'configs',
  'also': 'configs',
  'sweep': 'configs/sweeps',
}


# ---- Libraries ---------------------------------------------------------------


def versions() -> dict[str, str]:
  """Returns versions of Python and of the installed `LIBRARIES`, by name."""
  found = {'python': platform.python_version()}
  for name in LIBRARIES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  return found


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
    # A broken distribution has no name. Python imports the first on the path.
    name = re.sub(r'[-_.]+', '-', one.metadata.get('Name') or '').lower()
    if not name or name in seen:
      continue
    seen.add(name)
    if origin := one.read_text('direct_url.json'):  # PEP 610
      # Without a user name or token.
      url = re.sub(r'//[^/@]*@', '//', json.loads(origin)['url'])
      elsewhere.append(f'# {name} {one.version}, not from an index: {url}')
    else:
      pins.append(f'{name}=={one.version}')
  lines = [f'# Python {platform.python_version()}']
  return '\n'.join(lines + sorted(pins) + sorted(elsewhere)) + '\n'


def parse(text: str) -> dict[str, str]:
  """Parses the text of `freeze` to name -> version; skips other lines."""
  found = {}
  for line in filter(None, map(_LINE.fullmatch, text.splitlines())):
    name, version, *origin = filter(None, line.groups())
    found[name.lower() if name == 'Python' else name] = ' '.join(
      [version, *(f'({one})' for one in origin)]
    )
  return found


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
  """Lists changes, such as `jax 0.10.2 -> 0.12.0, libtpu none -> 0.0.50`.

  Args:
    old: name -> version, see `parse`.
    new: name -> version.

  Returns:
    '' if nothing differs. Python and `LIBRARIES` come first.
  """
  first = ['python', *(name.replace('_', '-') for name in LIBRARIES)]
  both = {*old, *new}
  names = [name for name in first if name in both]
  names += sorted(both.difference(first))
  return ', '.join(
    f'{name} {old.get(name, "none")} -> {new.get(name, "none")}'
    for name in names
    if old.get(name) != new.get(name)
  )


# ---- This code ---------------------------------------------------------------


def report() -> str:
  """Returns what a bug report needs: code, libraries, system and devices."""
  import vit_jax

  lines = {
    'vit_jax': f'{vit_jax.__version__}, commit {commit() or "unknown"}',
    **versions(),
    'system': platform.platform(),
    'devices': devices(),
  }
  return '\n'.join(f'{name} {found}' for name, found in lines.items())


def devices() -> str:
  """Returns the number and kind of JAX's devices, or why JAX finds none."""
  try:
    done = subprocess.run(
      [sys.executable, '-c', _ASK],
      # A run on the same machine may hold most of a GPU's memory.
      env={**os.environ, 'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'},
      capture_output=True,
      text=True,
      timeout=_DEVICE_PATIENCE,
    )
  except subprocess.TimeoutExpired:
    return f'unknown: they did not open within {_DEVICE_PATIENCE:g} seconds'
  if done.returncode:
    lines = done.stderr.strip().splitlines() or [f'exit code {done.returncode}']
    return f'unknown: {lines[-1]}'
  return done.stdout.strip().splitlines()[-1]


def commit(root: pathlib.Path = _ROOT) -> str:
  """Returns the commit of this code, such as `0b97a35...`; never raises.

  Args:
    root: the folder that holds `vit_jax`.

  Returns:
    40 hexadecimal digits, followed by `+` if tracked files were changed, or by
    `?` if git took too long to tell. For an installed package, the commit at
    build time. '' if the code is in no repository, or not tracked by the
    repository around it.
  """
  with contextlib.suppress(OSError):
    # launch/pack.sh adds this folder to shipped code, which has no repository.
    shipped = root / 'launch_record'
    changed = (shipped / 'local.diff').stat().st_size > 0
    return (shipped / 'commit').read_text().strip() + '+' * changed
  with contextlib.suppress(OSError):
    # setup.py adds this file to an installed package.
    return (root / 'vit_jax/COMMIT').read_text().strip()
  head = ''
  with contextlib.suppress(OSError, subprocess.SubprocessError):
    _git(root, 'ls-files', '--error-unmatch', 'vit_jax/__init__.py')
    head = _git(root, 'rev-parse', 'HEAD').strip()
    changed = _git(root, 'status', '--porcelain', '--untracked-files=no')
    return head + '+' * bool(changed)
  return head and head + '?'


def _git(root: pathlib.Path, *words: str) -> str:
  # A hook of another repository may have set GIT_DIR. Without optional locks,
  # this read does not get in the way of a git command that writes.
  kept = {k: v for k, v in os.environ.items() if not k.startswith('GIT_')}
  return subprocess.run(
    ['git', '-C', os.fspath(root), *words],
    env={**kept, 'GIT_OPTIONAL_LOCKS': '0'},
    capture_output=True,
    text=True,
    check=True,
    timeout=_GIT_PATIENCE,
  ).stdout


# ---- Files that ship with the code -------------------------------------------


def path(name: str) -> pathlib.Path:
  """Returns the path of a file or folder of `configs/` or `launch/`.

  Args:
    name: relative to the top of a checkout, such as `launch/Dockerfile`.

  Returns:
    The path in the checkout or in the installed package.

  Raises:
    FileNotFoundError: the file does not come with the code.
  """
  folder, _, rest = name.partition('/')
  if folder in ('configs', 'launch'):
    [root] = importlib.import_module(f'vit_jax.{folder}').__path__
    found = pathlib.Path(root, rest)
    if found.exists():
      return found
  raise FileNotFoundError(
    f'{name} does not come with vit_jax; configs/ and launch/ do.'
  )


def names(flag: str) -> list[str]:
  """Returns the names that a flag accepts without a path: `pretrain`, ...

  Args:
    flag: `config`, `also` or `sweep`.
  """
  return sorted(f.stem for f in path(_FOLDERS[flag]).glob('[!_]*.py'))


def find(flag: str, text: str) -> str:
  """Finds the file that `--config=TEXT` or `--sweep=TEXT` names.

  A file that exists at the given path comes first. Otherwise `pretrain`,
  `pretrain.py` and `configs/pretrain.py` all name the file that comes with the
  code, whatever the current folder is.

  Args:
    flag: `config`, `also` or `sweep`.
    text: `FILE[:ARGUMENT]`.

  Returns:
    `PATH[:ARGUMENT]` of an existing file.

  Raises:
    ValueError: there is no such file; the message lists similar names and all
      available ones.
  """
  name, colon, argument = text.partition(':')
  if os.path.isfile(name):
    return text
  folder, shipped = _FOLDERS[flag], names(flag)
  above, _, stem = name.removesuffix('.py').rpartition('/')
  # The path may begin with `configs/sweeps/`, `sweeps/` or nothing.
  if stem in shipped and (not above or f'/{folder}'.endswith(f'/{above}')):
    return f'{path(folder) / stem}.py{colon}{argument}'
  # The folder that the user named may hold files of the user's own.
  place = pathlib.Path(os.path.dirname(name) or folder)
  own = []
  if place.resolve() != path(folder).resolve():
    own = sorted(file.stem for file in place.glob('[!_]*.py'))
  close = difflib.get_close_matches
  similar = [f'{place}/{near}.py' for near in close(stem, own)]
  similar += close(stem, shipped)
  listed = ', '.join(f'{one}.py' for one in own)
  raise ValueError(
    f'--{flag}={text}: there is no file {name!r}. '
    + (f'Did you mean {" or ".join(similar)}? ' if similar else '')
    + (f'{place} holds {listed}. ' if own else '')
    + f'vit_jax comes with {", ".join(shipped)}.'
  )


def exists(flag: str, text: str) -> bool:
  """Returns whether `find` finds the file."""
  with contextlib.suppress(ValueError):
    return bool(find(flag, text))
  return False

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
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Iterator

# The libraries that may affect a step's numbers, its speed or checkpoints.
LIBRARIES = (
  *('jax', 'jaxlib', 'libtpu'),
  *('jax-cuda12-plugin', 'jax-cuda12-pjrt'),
  *('jax-cuda13-plugin', 'jax-cuda13-pjrt'),
  *('flax', 'optax', 'orbax-checkpoint', 'numpy'),
  *('ml-dtypes', 'tensorstore', 'array-record'),
  *('opencv-python-headless', 'simplejpeg'),
)
# The current and the former name of this code's own distribution.
_OWN = ('vit-paper-jax', 'vit-jax')
_ROOT = pathlib.Path(__file__).parents[2]
# Seconds: a repository on a network disk must not hold up a run.
_GIT_PATIENCE = 10.0
# Flag -> the folders of the files that it can name without a path.
_FOLDERS = {
  'config': ('configs', 'configs/recipes'),
  'also': ('configs', 'configs/recipes'),
  'sweep': ('configs/sweeps',),
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
  # A folder of that name in the working directory, such as wandb's own, is no
  # package: it has no origin.
  missing = [
    name
    for name in packages
    if not (spec := importlib.util.find_spec(name)) or spec.origin is None
  ]
  if missing:
    raise ValueError(
      f'{what} needs {" and ".join(missing)}, which is not installed. Run'
      f' pip install "vit-paper-jax[{extra}]".'
    )


def requirements() -> str:
  """Returns all installed distributions as a requirements file for pip.

  Returns:
    Lines: `# Python 3.12.1`; `name==version` for each distribution; a comment
    for one that comes from no index, such as an editable installation. This
    code itself is left out.
  """
  lines = {}
  for one in importlib.metadata.distributions():
    metadata = one.metadata  # Each access reads and parses a file.
    name, version = (metadata.get(key) or '' for key in ('Name', 'Version'))
    name = re.sub(r'[-_.]+', '-', name).lower()
    # A broken distribution lacks these. Python imports the first on the path.
    if not name or not version or name in {*_OWN, *lines}:
      continue
    lines[name] = f'{name}=={version}'
    if one.read_text('direct_url.json'):  # PEP 610
      lines[name] = f'# {name} {version}, not from an index'
  listed = [lines[name] for name in sorted(lines)]
  return '\n'.join([f'# Python {platform.python_version()}', *listed, ''])


# ---- This code ---------------------------------------------------------------


def report() -> Iterator[str]:
  """Yields lines for a bug report: code, libraries, system."""
  import vit_jax

  yield f'vit_jax {vit_jax.__version__}, commit {commit() or "unknown"}'
  yield from (f'{name} {found}' for name, found in versions().items())
  yield f'system {platform.platform()}'


def commit(root: pathlib.Path = _ROOT) -> str:
  """Returns the commit of this code, such as `0b97a35...`; never raises.

  Args:
    root: the folder that holds `vit_jax`.

  Returns:
    40 hexadecimal digits, followed by `+` if tracked files were changed. For an
    installed package, the commit at build time. '' if the code is in no
    repository, not tracked by the repository around it, or if git is slow.
  """
  with contextlib.suppress(OSError):
    # launch/pack.sh adds this folder to shipped code, which has no repository.
    shipped = root / 'launch_record'
    changed = (shipped / 'local.diff').stat().st_size > 0
    return (shipped / 'commit').read_text().strip() + '+' * changed
  with contextlib.suppress(OSError):
    # setup.py adds this file to an installed package.
    return (root / 'vit_jax/COMMIT').read_text().strip()
  # Without the locks, this does not get in the way of a command that writes.
  git = functools.partial(_run, 'git', '--no-optional-locks', '-C', str(root))
  with contextlib.suppress(OSError, subprocess.SubprocessError):
    git('ls-files', '--error-unmatch', 'vit_jax/__init__.py')
    # Without the name of a tag in front.
    return git(
      'describe', '--always', '--abbrev=40', '--exclude=*', '--dirty=+'
    )
  return ''


def _run(*words: str) -> str:
  options = dict(capture_output=True, text=True, check=True)
  return subprocess.run(words, timeout=_GIT_PATIENCE, **options).stdout.strip()


# ---- Files that ship with the code -------------------------------------------


def path(name: str) -> pathlib.Path:
  """Returns the path of a file or folder of `configs/` or `launch/`.

  Args:
    name: relative to the top of a checkout, such as `launch/image/Dockerfile`.

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
    ValueError: there is no such file; the message lists those that come with
      the code.
  """
  name, colon, argument = text.partition(':')
  if os.path.isfile(name):
    return text
  shipped = {
    file.stem: folder
    for folder in _FOLDERS[flag]
    for file in sorted(path(folder).glob('[!_]*.py'))
  }
  above, _, stem = name.removesuffix('.py').rpartition('/')
  folder = shipped.get(stem, '')
  # The path may begin with `configs/sweeps/`, `sweeps/` or nothing.
  if folder and (not above or f'/{folder}'.endswith(f'/{above}')):
    return f'{path(folder) / stem}.py{colon}{argument}'
  similar = difflib.get_close_matches(stem, shipped)
  raise ValueError(
    f'--{flag}={text}: there is no file {name!r}. '
    + (f'Did you mean {" or ".join(similar)}? ' if similar else '')
    + f'vit_jax comes with {", ".join(shipped)}.'
  )

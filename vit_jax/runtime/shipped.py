"""Finds files that ship with the code: configs, sweeps, and all of launch/.

This module imports only the standard library, because the programs in launch/
run where nothing else is installed.
"""

import difflib
import importlib
import os
import pathlib
from collections.abc import Sequence

# Flag -> the folder of the files that it can name without a path.
_FOLDERS = {
  'config': 'configs',
  'also': 'configs',
  'sweep': 'configs/sweeps',
}


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
  if folder not in ('configs', 'launch'):
    raise FileNotFoundError(
      f'{name} does not come with vit_jax; configs/ and launch/ do.'
    )
  [root] = importlib.import_module(f'vit_jax.{folder}').__path__
  found = pathlib.Path(root, rest)
  if not found.exists():
    raise FileNotFoundError(f'{name} does not come with vit_jax.')
  return found


def names(flag: str) -> list[str]:
  """Returns the names that a flag accepts without a path: `pretrain`, ...

  Args:
    flag: `config`, `also` or `sweep`.
  """
  return _names(path(_FOLDERS[flag]))


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
  found = _find(flag, name)
  if not found:
    raise ValueError(f'--{flag}={text}: {_missing(flag, name)}')
  return found + colon + argument


def exists(flag: str, text: str) -> bool:
  """Returns whether `find` finds the file."""
  return bool(_find(flag, text.partition(':')[0]))


def _find(flag: str, name: str) -> str:
  if os.path.isfile(name):
    return name
  folder = _FOLDERS[flag]
  stem = name.removesuffix('.py')
  above, _, stem = stem.rpartition('/')
  # The path may begin with `configs/sweeps/`, `sweeps/` or nothing.
  if above and not f'/{folder}'.endswith(f'/{above}'):
    return ''
  file = path(folder) / f'{stem}.py'
  return str(file) if stem in names(flag) else ''


def _missing(flag: str, name: str) -> str:
  """Says that there is no such file, and which files there are."""
  shipped = names(flag)
  # The folder that the user named, which may hold files of the user's own.
  folder = pathlib.Path(os.path.dirname(name) or _FOLDERS[flag])
  own = []
  if folder.is_dir() and not folder.samefile(path(_FOLDERS[flag])):
    own = _names(folder)
  stem = os.path.basename(name).removesuffix('.py')
  similar = [
    *(f'{folder}/{near}.py' for near in _similar(stem, own)),
    *_similar(stem, shipped),
  ]
  words = [f'there is no file {name!r}.']
  if similar:
    words.append(f'Did you mean {" or ".join(similar)}?')
  if own:
    words.append(f'{folder} holds {", ".join(f"{one}.py" for one in own)}.')
  words.append(f'vit_jax comes with {", ".join(shipped)}.')
  return ' '.join(words)


def _names(folder: pathlib.Path) -> list[str]:
  return sorted(file.stem for file in folder.glob('[!_]*.py'))


def _similar(name: str, choices: Sequence[str]) -> list[str]:
  return difflib.get_close_matches(name, choices)

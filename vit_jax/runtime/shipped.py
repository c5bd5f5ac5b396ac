"""Files that come with the code: configs, sweeps, and all of launch/.

Of the standard library alone, as what is in launch/ runs where nothing else is
installed.
"""

import difflib
import importlib
import os
import pathlib
from collections.abc import Sequence

# Flag -> the folder of what it may name without a path.
_FOLDERS = {
  'config': 'configs',
  'also': 'configs',
  'sweep': 'configs/sweeps',
}


def path(name: str) -> pathlib.Path:
  """A file or folder of a checkout's `configs/` or `launch/`.

  Args:
    name: from the top of a checkout, such as `launch/Dockerfile`.

  Returns:
    Where it is, in a checkout or in an installed package.

  Raises:
    FileNotFoundError: it does not come with the code.
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
  """What `--config` or `--sweep` takes without a path: `pretrain`, ...

  Args:
    flag: `config`, `also` or `sweep`.
  """
  return _names(path(_FOLDERS[flag]))


def find(flag: str, text: str) -> str:
  """The file that `--config=TEXT` or `--sweep=TEXT` names.

  A file at the path given is taken before one that comes with the code, which
  `pretrain`, `pretrain.py` and `configs/pretrain.py` name in any folder.

  Args:
    flag: `config`, `also` or `sweep`.
    text: `FILE[:ARGUMENT]`.

  Returns:
    `PATH[:ARGUMENT]` of a file that is there.

  Raises:
    ValueError: there is none; names similar ones and all that there are.
  """
  name, colon, argument = text.partition(':')
  found = _find(flag, name)
  if not found:
    raise ValueError(f'--{flag}={text}: {_missing(flag, name)}')
  return found + colon + argument


def exists(flag: str, text: str) -> bool:
  """Whether `find` finds it."""
  return bool(_find(flag, text.partition(':')[0]))


def _find(flag: str, name: str) -> str:
  if os.path.isfile(name):
    return name
  folder = _FOLDERS[flag]
  stem = name.removesuffix('.py')
  above, _, stem = stem.rpartition('/')
  # `configs/sweeps/`, `sweeps/` or nothing.
  if above and not f'/{folder}'.endswith(f'/{above}'):
    return ''
  file = path(folder) / f'{stem}.py'
  return str(file) if stem in names(flag) else ''


def _missing(flag: str, name: str) -> str:
  """That there is no such file, and which there are."""
  shipped = names(flag)
  # Where it was looked for, which need not be where the shipped ones are.
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
  words.append(f'Those of vit_jax are {", ".join(shipped)}.')
  return ' '.join(words)


def _names(folder: pathlib.Path) -> list[str]:
  return sorted(file.stem for file in folder.glob('[!_]*.py'))


def _similar(name: str, choices: Sequence[str]) -> list[str]:
  return difflib.get_close_matches(name, choices)

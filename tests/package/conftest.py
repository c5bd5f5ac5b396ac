"""Fixtures: the source distribution and the wheel, built once from a copy."""

import dataclasses
import pathlib
import shutil
import sys
import tarfile
import zipfile

import pytest

from tests import commands

ROOT = pathlib.Path(__file__).parents[2]

_BUILD = """
import sys
from setuptools import build_meta
to = sys.argv[1]  # Building changes sys.argv.
build_meta.build_sdist(to)
build_meta.build_wheel(to)
"""


def git(folder, *words):
  who = ['-c', 'user.name=A', '-c', 'user.email=a@b', '-c', 'commit.gpgsign=0']
  return commands.run_new('git', '-C', folder, *who, *words).stdout


@dataclasses.dataclass(frozen=True)
class Built:
  """The built archives.

  Attributes:
    source: the repository that they were built from.
    head: its commit.
    sdist: the source distribution's archive.
    wheel: the wheel.
    unpacked: folder with the wheel's files.
  """

  source: pathlib.Path
  head: str
  sdist: pathlib.Path
  wheel: pathlib.Path
  unpacked: pathlib.Path


def read_sdist(path: pathlib.Path) -> dict[str, bytes]:
  """Returns file -> bytes; paths omit the archive's top folder."""
  with tarfile.open(path) as archive:
    return {
      member.name.partition('/')[2]: archive.extractfile(member).read()
      for member in archive
      if member.isfile()
    }


@pytest.fixture(scope='session')
def checkout(tmp_path_factory):
  """Makes a repository with one commit: all files that git does not ignore."""
  if not (ROOT / '.git').exists():
    pytest.skip('not a git checkout: the files of the package are not known')
  folder = tmp_path_factory.mktemp('checkout')
  tracked = git(ROOT, 'ls-files', '-z', '--cached').split('\0')
  others = git(ROOT, 'ls-files', '-z', '--others', '--exclude-standard')
  # New files in folders are code. Those at the top level may be notes.
  new = [name for name in others.split('\0') if '/' in name]
  for name in tracked + new:
    if (ROOT / name).is_file():
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(ROOT / name, folder / name)
  git(folder, 'init', '--quiet')
  git(folder, 'add', '--all')
  git(folder, 'commit', '--quiet', '--message=One')
  return folder


def build(source: pathlib.Path, to: pathlib.Path) -> None:
  """Builds sdist and wheel as pip does without build isolation."""
  pytest.importorskip(
    'setuptools', minversion='70.1', reason='pip install "setuptools>=70.1"'
  )
  commands.run_new(sys.executable, '-c', _BUILD, to, cwd=source)


@pytest.fixture(scope='session')
def built(checkout, tmp_path_factory):
  folder = tmp_path_factory.mktemp('built')
  build(checkout, folder)
  [sdist], [wheel] = folder.glob('*.tar.gz'), folder.glob('*.whl')
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder / 'unpacked')
  head = git(checkout, 'rev-parse', 'HEAD').strip()
  return Built(checkout, head, sdist, wheel, folder / 'unpacked')

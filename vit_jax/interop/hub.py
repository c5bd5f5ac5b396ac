"""Weights on the Hugging Face Hub: `hf://OWNER/NAME[/FILE][@REVISION]`.

Everything goes through `huggingface_hub`: its cache, its resumed downloads, its
token (`hf auth login` or $HF_TOKEN), its offline mode ($HF_HUB_OFFLINE=1) and
its errors. Only arrays and JSON are downloaded, nothing that could run code.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from etils import epath

from vit_jax.runtime import installed

SCHEME = 'hf://'
_ADDRESS = re.compile(
  r'hf://(?P<repository>[\w.-]+/[\w.-]+)(?P<file>(/[^/@]+)*)(@(?P<revision>\S+))?'
)
_JSON = ('config.json', 'preprocessor_config.json')
_WEIGHTS = 'model.safetensors'
_READ = ('.npz', '.safetensors')


class Address(NamedTuple):
  """A repository of models, or one file in it.

  Attributes:
    repository: `OWNER/NAME`.
    file: a path within it; '' for all of its weights.
    revision: branch, tag or commit; None for the main branch.
  """

  repository: str
  file: str
  revision: str | None

  def __str__(self) -> str:
    file = f'/{self.file}' if self.file else ''
    revision = f'@{self.revision}' if self.revision else ''
    return f'{SCHEME}{self.repository}{file}{revision}'


def is_address(path: epath.PathLike) -> bool:
  """Returns whether a path is on the Hub."""
  return os.fspath(path).startswith(SCHEME)


def parse(text: str) -> Address:
  """Parses an address; ValueError if it is none."""
  found = _ADDRESS.fullmatch(text)
  file = found['file'].strip('/') if found else ''
  if not found or '..' in file.split('/'):
    raise ValueError(
      f'{text}: expected hf://OWNER/NAME, perhaps with a file and a revision:'
      ' hf://OWNER/NAME/FILE.npz@REVISION.'
    )
  if file and not file.endswith(_READ):
    raise ValueError(
      f'{text}: only {" and ".join(_READ)} files are read, because others can'
      ' run code.'
    )
  return Address(found['repository'], file, found['revision'])


def download(text: str) -> epath.Path:
  """Downloads weights into the cache of `huggingface_hub`.

  Args:
    text: `hf://OWNER/NAME[/FILE][@REVISION]`.

  Returns:
    A `.npz` or `.safetensors` file, or a Hugging Face folder.

  Raises:
    ValueError: the package is missing; the repository, revision or file does
      not exist or may not be read; there is no network and nothing in the
      cache; or the repository holds no weights that are read.
  """
  address = parse(text)
  installed.require('huggingface_hub', extra='hub')
  import huggingface_hub

  patterns = [*_JSON, _WEIGHTS]
  if address.file:
    beside = os.path.dirname(address.file)
    patterns = [address.file, f'{address.file}.json']
    patterns += [os.path.join(beside, name) for name in _JSON]
  with _explained(address):
    folder = epath.Path(
      huggingface_hub.snapshot_download(
        address.repository,
        revision=address.revision,
        allow_patterns=patterns,
      )
    )
  wanted = address.file or _WEIGHTS
  if not (folder / wanted).exists():
    raise ValueError(
      f'{address}: the repository has no {wanted}. Another file is'
      f' named as in {SCHEME}{address.repository}/FILE.npz. Pickles, such as'
      ' pytorch_model.bin, can run code, so they are not downloaded.'
    )
  return folder / address.file


def pinned(text: str, found: epath.Path) -> str:
  """Returns an address with the commit as its revision.

  Args:
    text: the address.
    found: what `download` returned for it.
  """
  [commit] = re.findall(r'/snapshots/([0-9a-f]{40})(?:/|$)', str(found))
  return str(parse(text)._replace(revision=commit))


def check_target(text: str, overwrite: bool) -> Address:
  """Checks that weights can be uploaded to a repository.

  Args:
    text: `hf://OWNER/NAME[@BRANCH]`.
    overwrite: whether its files may be replaced.

  Raises:
    ValueError: it is no such address, the package is missing, the branch does
      not exist or has files already, or the Hub cannot be reached.
  """
  address = parse(text)
  if address.file:
    raise ValueError(f'{text}: expected hf://OWNER/NAME, without a file.')
  installed.require('huggingface_hub', extra='hub')
  import huggingface_hub

  with _explained(address):
    found = huggingface_hub.HfApi().repo_exists(address.repository) and {
      *huggingface_hub.HfApi().list_repo_files(
        address.repository, revision=address.revision
      )
    } - {'.gitattributes'}
  if found and not overwrite:
    raise ValueError(
      f'{address} has files, such as {min(found)}; --overwrite adds a commit'
      ' that replaces them.'
    )
  return address


def upload(folder: epath.Path, address: Address, *, private: bool) -> str:
  """Uploads a folder as one commit.

  Args:
    folder: a local folder; all of its files are uploaded.
    address: from `check_target`.
    private: whether a repository that does not exist yet becomes private.

  Returns:
    The address of the new commit.

  Raises:
    ValueError: the Hub refuses it or cannot be reached.
  """
  import huggingface_hub

  with _explained(address):
    huggingface_hub.HfApi().create_repo(
      address.repository, private=private, exist_ok=True
    )
    commit = huggingface_hub.HfApi().upload_folder(
      repo_id=address.repository,
      folder_path=os.fspath(folder),
      revision=address.revision,
      commit_message='Weights from vit_jax',
    )
  return str(address._replace(revision=commit.oid))


@contextlib.contextmanager
def _explained(address: Address) -> Iterator[None]:
  """Turns the errors of `huggingface_hub`, which advise, into ValueErrors."""
  from huggingface_hub import errors

  try:
    yield
  # HTTPError is of the HTTP library, OSError also of a file in the cache, and
  # an upload gives RuntimeErrors.
  except (errors.HTTPError, OSError, RuntimeError) as error:
    raise ValueError(f'{address}: {error}') from error

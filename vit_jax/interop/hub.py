"""Weights on the Hugging Face Hub: `hf://OWNER/NAME[/FILE][@REVISION]`.

Everything goes through `huggingface_hub`: its cache, its resumed downloads, its
token (`hf auth login` or $HF_TOKEN) and its offline mode ($HF_HUB_OFFLINE=1).
Only arrays and JSON are downloaded, nothing that could run code.
"""

import contextlib
import dataclasses
import fnmatch
import hashlib
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from absl import logging
from etils import epath

from vit_jax.runtime import installed

SCHEME = 'hf://'
_ADDRESS = re.compile(
  r'hf://(?P<repository>[\w.-]+/[\w.-]+)(?P<file>(/[^/@]+)*)(@(?P<revision>\S+))?'
)
# What a folder of weights consists of; anything else stays on the Hub.
_FOLDER = (
  *('config.json', 'preprocessor_config.json'),
  *('model.safetensors', 'model-*.safetensors', 'model.safetensors.index.json'),
)
_WEIGHTS = ('model.safetensors', 'model.safetensors.index.json')
_READ = ('.npz', '.safetensors')


@dataclasses.dataclass(frozen=True)
class Address:
  """A repository of models, or one file in it.

  Attributes:
    repository: `OWNER/NAME`.
    file: a path within it; '' for all of its weights.
    revision: branch, tag or commit; '' for the main branch.
  """

  repository: str
  file: str = ''
  revision: str = ''

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
  if not found:
    raise ValueError(
      f'{text}: expected hf://OWNER/NAME, perhaps with a file and a revision:'
      ' hf://OWNER/NAME/FILE.npz@REVISION.'
    )
  file = (found['file'] or '').strip('/')
  if '..' in file.split('/'):
    raise ValueError(f'{text}: a file of a repository cannot be above it.')
  if file and not file.endswith(_READ):
    raise ValueError(
      f'{text}: only {" and ".join(_READ)} files are read, because others can'
      ' run code.'
    )
  return Address(found['repository'], file, found['revision'] or '')


def download(text: str) -> epath.Path:
  """Downloads weights into the cache of `huggingface_hub`, and verifies them.

  Args:
    text: `hf://OWNER/NAME[/FILE][@REVISION]`.

  Returns:
    A `.npz` or `.safetensors` file, or a Hugging Face folder.

  Raises:
    ValueError: the package is missing; the repository, revision or file does
      not exist or may not be read; there is no network and nothing in the
      cache; a file is not the one that the Hub describes; or the repository
      holds no weights that are read.
  """
  address = parse(text)
  installed.require('huggingface_hub', extra='hub')
  file = address.file or _choose(address)
  patterns = _patterns(file)
  folder = _snapshot(address, patterns)
  # The cache may also hold files that nobody asks for now.
  for path in sorted(pathlib.Path(folder).rglob('*')):
    name = str(path.relative_to(folder))
    if not path.is_dir() and any(fnmatch.fnmatch(name, p) for p in patterns):
      _verify(path, address)
  return _existing(folder / file, address) if file else folder


def _choose(address: Address) -> str:
  """Returns the repository's only `.npz` file; '' if it is a folder.

  Raises:
    ValueError: there are several `.npz` files, or no weights.
  """
  names = _names(address)
  if names & {*_WEIGHTS}:
    return ''
  found = sorted(n for n in names if n.endswith('.npz') and '/' not in n)
  if len(found) == 1:
    return found[0]
  if found:
    raise ValueError(
      f'{address} holds several files of weights: name one of them, as in'
      f' hf://{address.repository}/{found[0]}. There are {", ".join(found)}.'
    )
  raise ValueError(
    f'{address} holds no weights that are read: no model.safetensors and no'
    ' .npz file. Pickles, such as pytorch_model.bin, can run code, so they are'
    ' not downloaded.'
  )


def _names(address: Address) -> set[str]:
  """Returns the names of a revision's files; without a network, the cache's."""
  import huggingface_hub
  from huggingface_hub import errors

  api, revision = huggingface_hub.HfApi(), address.revision or None
  with _explained(address):
    try:
      return set(api.list_repo_files(address.repository, revision=revision))
    except (errors.HTTPError, OSError):
      # It uses the cache, or raises an error that says why it cannot.
      folder = pathlib.Path(_snapshot(address, _FOLDER))
  return {str(path.relative_to(folder)) for path in folder.rglob('*')}


def _patterns(file: str) -> tuple[str, ...]:
  """Returns which names belong to a file, or to the folder if it is ''."""
  if not file:
    return _FOLDER
  patterns = (file, f'{file}.json')
  if file.endswith('.safetensors'):
    folder = file.rpartition('/')[0]
    names = ('config.json', 'preprocessor_config.json')
    patterns += tuple(f'{folder}/{name}'.lstrip('/') for name in names)
  return patterns


def pinned(text: str, found: epath.Path) -> str:
  """Returns an address with the commit as its revision.

  Args:
    text: the address.
    found: what `download` returned for it.
  """
  address = parse(text)
  if address.file:
    folder = found.parents[address.file.count('/')]
  else:
    folder = found if found.is_dir() else found.parent
  return str(dataclasses.replace(address, revision=folder.name))


def _snapshot(address: Address, patterns: Sequence[str]) -> epath.Path:
  """Returns the cache's folder of one commit, named after the commit."""
  import huggingface_hub

  with _explained(address):
    path = huggingface_hub.snapshot_download(
      address.repository,
      revision=address.revision or None,
      allow_patterns=list(patterns),
    )
  return epath.Path(path)


def _existing(path: epath.Path, address: Address) -> epath.Path:
  if not path.exists():
    raise ValueError(f'{address}: the repository has no such file.')
  return path


def _verify(path: pathlib.Path, address: Address) -> None:
  """Compares a file with the checksum in the name of its blob in the cache.

  The Hub names large files by their SHA-256, and small ones as Git does.
  """
  try:
    blob = os.path.join(os.path.dirname(path), os.readlink(path))
  except OSError:  # The cache holds no links on some file systems.
    logging.warning('%s cannot be verified: it is not in a cache.', path)
    return
  expected = os.path.basename(blob)
  if re.fullmatch('[0-9a-f]{64}', expected):
    digest = hashlib.sha256()
  elif re.fullmatch('[0-9a-f]{40}', expected):
    digest = hashlib.sha1(f'blob {os.path.getsize(blob)}\0'.encode())
  else:
    logging.warning('%s cannot be verified: %s is no checksum.', path, expected)
    return
  with open(blob, 'rb') as file:
    while part := file.read(2**20):
      digest.update(part)
  if digest.hexdigest() != expected:
    os.unlink(path)
    os.unlink(blob)
    raise ValueError(
      f'{address}: {path.name} is damaged: its checksum is'
      f' {digest.hexdigest()}, but the Hub says {expected}. It was removed from'
      ' the cache; try again.'
    )


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
  if re.fullmatch('[0-9a-f]{40}', address.revision):
    raise ValueError(
      f'{text} names a commit, which never changes: name a branch, or nothing'
      ' for the main branch.'
    )
  installed.require('huggingface_hub', extra='hub')
  import huggingface_hub

  api = huggingface_hub.HfApi()
  with _explained(address):
    if not api.repo_exists(address.repository):
      if address.revision not in ('', 'main'):
        raise ValueError(
          f'{text}: the repository does not exist yet, and a new one has only'
          f' the branch main. Remove @{address.revision}.'
        )
      return address
    found = set(
      api.list_repo_files(address.repository, revision=address.revision or None)
    ) - {'.gitattributes'}
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

  api = huggingface_hub.HfApi()
  with _explained(address):
    api.create_repo(address.repository, private=private, exist_ok=True)
    commit = api.upload_folder(
      repo_id=address.repository,
      folder_path=os.fspath(folder),
      revision=address.revision or None,
      commit_message='Weights from vit_jax',
    )
  return str(dataclasses.replace(address, revision=commit.oid))


@contextlib.contextmanager
def _explained(address: Address) -> Iterator[None]:
  """Turns the errors of `huggingface_hub` into ValueErrors that advise."""
  from huggingface_hub import errors

  token = 'Log in with `hf auth login`, or set $HF_TOKEN.'
  try:
    yield
  except errors.GatedRepoError as error:
    raise ValueError(
      f'{address} is gated: accept its conditions on its page at'
      f' huggingface.co. {token}'
    ) from error
  except errors.RepositoryNotFoundError as error:
    raise ValueError(
      f'{address}: there is no such repository, or you may not see it. Check'
      f' the name. If it is private: {token[0].lower()}{token[1:]}'
    ) from error
  except errors.RevisionNotFoundError as error:
    raise ValueError(
      f'{address}: the repository has no revision {address.revision!r}.'
    ) from error
  except errors.HFValidationError as error:
    raise ValueError(f'{address} is no address: {error}') from error
  except errors.HfHubHTTPError as error:
    status = error.response.status_code if error.response is not None else 0
    if status in (401, 403):
      raise ValueError(
        f'{address}: your token has no right to do this. {token} It needs the'
        ' right to write for an upload.'
      ) from error
    raise ValueError(f'{address}: the Hub answered {error}') from error
  except errors.OfflineModeIsEnabled as error:
    raise ValueError(
      f'{address} cannot be reached, because HF_HUB_OFFLINE is set.'
    ) from error
  except errors.LocalEntryNotFoundError as error:
    raise ValueError(
      f'{address} is not in the cache, and the Hub cannot be reached: check the'
      ' network, $HF_ENDPOINT and $HF_HUB_OFFLINE.'
    ) from error
  # Of the network (HTTPError is of the HTTP library), of a file in the cache,
  # or of an upload, which gives RuntimeErrors.
  except (errors.HTTPError, OSError, RuntimeError) as error:
    raise ValueError(
      f'{address} was not transferred: {error}. Try again; files that are'
      ' complete are kept.'
    ) from error

"""Weights on the Hugging Face Hub: `hf://OWNER/NAME[/FILE][@REVISION]`.

Everything goes through `huggingface_hub`: its cache, its resumed downloads, its
token (`hf auth login` or $HF_TOKEN), its offline mode ($HF_HUB_OFFLINE=1) and
its errors. Only arrays and JSON are downloaded, nothing that could run code.
"""

import os
import re

from etils import epath

from vit_jax.runtime import installed

SCHEME = 'hf://'
_ADDRESS = re.compile(
  r'hf://(?P<repository>[\w.-]+/[\w.-]+)(?P<file>(/[^/@]+)*)(@(?P<revision>\S+))?'
)
_JSON = ('config.json', 'preprocessor_config.json', 'processor_config.json')
_WEIGHTS = 'model.safetensors'
_INDEX, _PARTS = f'{_WEIGHTS}.index.json', 'model-*-of-*.safetensors'
_READ = ('.npz', '.safetensors')


def is_address(path: epath.PathLike) -> bool:
  """Returns whether a path is on the Hub."""
  return os.fspath(path).startswith(SCHEME)


def download(text: str) -> epath.Path:
  """Downloads weights into the cache of `huggingface_hub`.

  Args:
    text: `hf://OWNER/NAME[/FILE][@REVISION]`.

  Returns:
    A `.npz` or `.safetensors` file, or a Hugging Face folder.

  Raises:
    ValueError: this is no address, or one of a file that is not read; the
      package is missing; the repository, revision or file does not exist or may
      not be read; there is no network and nothing in the cache; or the
      repository holds no weights that are read.
  """
  match = _ADDRESS.fullmatch(text)
  file = match['file'].strip('/') if match else ''
  if not match or '..' in file.split('/'):
    raise ValueError(
      f'{text}: expected hf://OWNER/NAME, perhaps with a file and a revision:'
      ' hf://OWNER/NAME/FILE.npz@REVISION.'
    )
  if file and not file.endswith(_READ):
    raise ValueError(
      f'{text}: only {" and ".join(_READ)} files are read, because others can'
      ' run code.'
    )
  installed.require('huggingface_hub', extra='hub')
  import huggingface_hub
  from huggingface_hub import errors

  patterns = [*_JSON, _WEIGHTS, _INDEX, _PARTS]
  if file:
    beside = os.path.dirname(file)
    patterns = [file, f'{file}.json']
    patterns += [os.path.join(beside, name) for name in _JSON]
  try:
    found = huggingface_hub.snapshot_download(
      match['repository'], revision=match['revision'], allow_patterns=patterns
    )
  # HTTPError is of the HTTP library, OSError also of a file in the cache.
  except (errors.HTTPError, OSError) as error:
    raise ValueError(f'{text}: {error}') from error
  folder = epath.Path(found)
  wanted = file or _WEIGHTS
  if not any((folder / name).exists() for name in (wanted, file or _INDEX)):
    raise ValueError(
      f'{text}: the repository has no {wanted}. Another file is'
      f' named as in {SCHEME}{match["repository"]}/FILE.npz. Pickles, such as'
      ' pytorch_model.bin, can run code, so they are not downloaded.'
    )
  return folder / file


def pinned(text: str, found: epath.Path) -> str:
  """Returns an address with the commit as its revision.

  Args:
    text: the address.
    found: what `download` returned for it.
  """
  [commit] = re.findall(r'/snapshots/([0-9a-f]{40})(?:/|$)', str(found))
  return f'{text.partition("@")[0]}@{commit}'

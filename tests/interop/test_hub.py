"""Guards: weights come from the Hugging Face Hub, and no code does."""

import fnmatch

import huggingface_hub
import pytest
from huggingface_hub import errors

from tests.interop import tiny
from vit_jax import interop
from vit_jax.interop import hub as hub_lib
from vit_jax.training import warm_start

COMMIT = 'c0ffee' + 34 * '0'


@pytest.fixture
def hub(monkeypatch, tmp_path):
  """The repositories: name -> file name -> content."""
  repositories = {}

  def download(name, *, revision, allow_patterns):
    if name not in repositories or revision not in (None, 'main', COMMIT):
      raise errors.LocalEntryNotFoundError(f'{name} at {revision}')
    folder = tmp_path / 'cache' / name / 'snapshots' / COMMIT
    for file, content in repositories[name].items():
      if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return str(folder)

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', download)
  return repositories


def _folder(path):
  model = tiny.vit(gelu='exact')
  params = tiny.params(model)
  interop.save_huggingface(
    path, params, model, 8, class_names=list('abcde'), preprocessing='resize'
  )
  return params


def _files(path):
  return {p.name: p.read_bytes() for p in path.iterdir()}


@pytest.fixture
def birds(hub, tmp_path):
  params = _folder(tmp_path / 'hf')
  hub['me/birds'] = _files(tmp_path / 'hf') | {
    'pytorch_model.bin': b'a pickle',
    'README.md': b'hello',
  }
  return params


def _params(path):
  weights = interop.read(path)
  assert weights.model == tiny.vit(gelu='exact')
  return interop.fit_weights(weights, weights.model, 8)[0]


def test_weights_are_downloaded_and_no_pickle(birds, tmp_path):
  tiny.assert_equal(_params('hf://me/birds'), birds)
  weights = interop.read('hf://me/birds@main')
  assert weights.class_names == tuple('abcde')
  assert weights.origin == f'hf://me/birds@{COMMIT}'
  found = _files(hub_lib.download('hf://me/birds'))
  assert not found.keys() & {'pytorch_model.bin', 'README.md'}


def test_npz_files_and_revisions(hub, birds, tmp_path):
  model = tiny.vit(gelu='exact')
  for name in ('one.npz', 'two.npz'):
    interop.save_npz(tmp_path / name, birds, model, image_size=8)
  hub['me/both'] = {
    f'x/{p.name}': p.read_bytes() for p in tmp_path.glob('*.npz*')
  }
  address = f'hf://me/both/x/two.npz@{COMMIT}'
  tiny.assert_equal(_params(address), birds)
  bare = 'hf://me/both/x/two.npz'
  found = hub_lib.download(bare)
  assert {p.name for p in found.parent.iterdir()} == {'two.npz', 'two.npz.json'}
  assert hub_lib.pinned(bare, found) == address
  with pytest.raises(ValueError, match=r'named as in hf://me/both/FILE\.npz'):
    interop.read('hf://me/both')


def test_a_run_keeps_the_commit_that_it_starts_from(birds, tmp_path):
  pinned = warm_start.pin('hf://me/birds', tmp_path)
  assert pinned == f'hf://me/birds@{COMMIT}'
  found = warm_start.resolve_path(pinned, tmp_path)
  assert found.name == COMMIT
  (tmp_path / 'config.json').write_text(
    '{"init": {"checkpoint": "hf://me/birds@0123"}}'
  )
  assert warm_start.pin('hf://me/birds', tmp_path) == 'hf://me/birds@0123'


@pytest.mark.parametrize(
  'address, message',
  [
    ('hf://me/nothing', 'hf://me/nothing: me/nothing at None'),
    ('hf://me/birds@nowhere', 'hf://me/birds@nowhere: .* at nowhere'),
    ('hf://me/birds/other.npz', 'has no other.npz'),
    ('hf://me/birds/model.bin', 'can run code'),
    ('hf://birds', 'expected hf://OWNER/NAME'),
    ('hf://me/birds/../../x.npz', 'expected hf://OWNER/NAME'),
    ('hf://me/pickles', 'has no model.safetensors.* can run code'),
  ],
)
def test_errors_say_what_is_wrong(hub, birds, address, message):
  hub['me/pickles'] = {'pytorch_model.bin': b''}
  with pytest.raises(ValueError, match=message):
    interop.read(address)
  assert issubclass(errors.HfHubHTTPError, errors.HTTPError)


def test_without_the_package(monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda _: None)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[hub\]"'):
    interop.read('hf://me/birds')

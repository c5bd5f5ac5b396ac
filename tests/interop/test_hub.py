"""Guards: weights go to the Hugging Face Hub and back, whole or not at all."""

import pathlib
from unittest import mock

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

from tests.interop import fake_hub, tiny
from vit_jax import convert, interop
from vit_jax.interop import hub as hub_lib
from vit_jax.training import warm_start


@pytest.fixture
def hub(monkeypatch, tmp_path):
  with fake_hub.running() as server:
    monkeypatch.setattr(constants, 'ENDPOINT', server.url)
    monkeypatch.setattr(
      constants,
      'HUGGINGFACE_CO_URL_TEMPLATE',
      server.url + '/{repo_id}/resolve/{revision}/{filename}',
    )
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(constants, 'HF_HUB_DISABLE_XET', True)
    monkeypatch.setattr(constants, 'HF_TOKEN_PATH', str(tmp_path / 'token'))
    monkeypatch.delenv('HF_TOKEN', raising=False)
    monkeypatch.setattr('time.sleep', lambda _: None)
    yield server


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
  hub.repositories['me/birds'] = _files(tmp_path / 'hf') | {
    'pytorch_model.bin': b'a pickle',
    'README.md': b'hello',
  }
  return params


def _params(path):
  weights = interop.read(path)
  assert weights.model == tiny.vit(gelu='exact')
  return interop.fit_weights(weights, weights.model, 8)[0]


def test_weights_are_downloaded_once_and_no_pickle(hub, birds):
  tiny.assert_equal(_params('hf://me/birds'), birds)
  before = len(hub.requested('/resolve/'))
  assert before
  weights = interop.read('hf://me/birds@main')
  assert weights.class_names == tuple('abcde')
  assert len(hub.requested('/resolve/')) == before
  assert not hub.requested('pytorch_model.bin')
  assert not hub.requested('README.md')


def test_the_cache_is_used_offline(hub, birds, monkeypatch):
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  with pytest.raises(ValueError, match='HF_HUB_OFFLINE'):
    interop.read('hf://me/birds')
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
  interop.read('hf://me/birds')
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  count = len(hub.requests)
  tiny.assert_equal(_params('hf://me/birds'), birds)
  assert len(hub.requests) == count


def test_npz_files_and_revisions(hub, birds, tmp_path):
  model = tiny.vit(gelu='exact')
  for name in ('one.npz', 'two.npz'):
    interop.save_npz(tmp_path / name, birds, model, image_size=8)
  hub.repositories['me/both'] = {
    f'x/{p.name}': p.read_bytes() for p in tmp_path.glob('*.npz*')
  }
  address = f'hf://me/both/x/two.npz@{fake_hub.COMMIT}'
  tiny.assert_equal(_params(address), birds)
  assert not hub.requested(f'me/both/resolve/{fake_hub.COMMIT}/x/one.npz')
  bare = 'hf://me/both/x/two.npz'
  assert hub_lib.pinned(bare, hub_lib.download(bare)) == address
  with pytest.raises(ValueError, match=r'named as in hf://me/both/FILE\.npz'):
    interop.read('hf://me/both')


def test_a_run_keeps_the_commit_that_it_starts_from(hub, birds, tmp_path):
  pinned = warm_start.pin('hf://me/birds', tmp_path)
  assert pinned == f'hf://me/birds@{fake_hub.COMMIT}'
  found = warm_start.resolve_path(pinned, tmp_path)
  assert found.name == fake_hub.COMMIT
  (tmp_path / 'config.json').write_text(
    '{"init": {"checkpoint": "hf://me/birds@0123"}}'
  )
  assert warm_start.pin('hf://me/birds', tmp_path) == 'hf://me/birds@0123'


def test_a_private_repository_needs_its_token(hub, birds, monkeypatch):
  hub.tokens['me/birds'] = 'secret'
  with pytest.raises(ValueError, match='Repository Not Found') as caught:
    interop.read('hf://me/birds')
  assert 'secret' not in str(caught.value)
  monkeypatch.setenv('HF_TOKEN', 'secret')
  tiny.assert_equal(_params('hf://me/birds'), birds)


@pytest.mark.parametrize(
  'address, message',
  [
    ('hf://me/nothing', '(?s)hf://me/nothing: .*Repository Not Found'),
    ('hf://me/birds@nowhere', '(?s)hf://me/birds@nowhere: .*Revision'),
    ('hf://me/birds/other.npz', 'has no other.npz'),
    ('hf://me/birds/model.bin', 'can run code'),
    ('hf://birds', 'expected hf://OWNER/NAME'),
    ('hf://me/birds/../../x.npz', 'expected hf://OWNER/NAME'),
    ('hf://me/pickles', 'has no model.safetensors .* can run code'),
  ],
)
def test_errors_say_what_is_wrong(hub, birds, address, message):
  hub.repositories['me/pickles'] = {'pytorch_model.bin': b''}
  with pytest.raises(ValueError, match=message):
    interop.read(address)


def test_without_a_network_or_the_package(hub, birds, monkeypatch):
  nowhere = 'http://127.0.0.1:9'
  monkeypatch.setattr(constants, 'ENDPOINT', nowhere)
  with pytest.raises(ValueError, match='hf://me/birds: '):
    interop.read('hf://me/birds')
  monkeypatch.setattr('importlib.util.find_spec', lambda _: None)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[hub\]"'):
    interop.read('hf://me/birds')


@pytest.fixture
def api(monkeypatch):
  """The API of uploads, without a network, with the signatures of the real."""
  api = mock.create_autospec(huggingface_hub.HfApi, instance=True)
  api.upload_folder.return_value.oid = fake_hub.COMMIT
  monkeypatch.setattr(huggingface_hub, 'HfApi', lambda: api)
  return api


def test_uploads(api, tmp_path, capsys):
  _folder(tmp_path / 'hf')
  words = (str(tmp_path / 'hf'), 'hf://me/new')
  found = {}

  def upload_folder(*, folder_path, **_):
    found.update(_files(pathlib.Path(folder_path)))
    return mock.DEFAULT

  api.upload_folder.side_effect = upload_folder
  api.repo_exists.return_value = False
  convert.convert(*words, license_='mit')
  assert f'hf://me/new@{fake_hub.COMMIT}' in capsys.readouterr().out
  api.create_repo.assert_called_with('me/new', private=True, exist_ok=True)
  assert found.keys() == {
    *('README.md', 'config.json'),
    *('model.safetensors', 'preprocessor_config.json'),
  }
  assert b'license: mit' in found['README.md']
  api.repo_exists.return_value = True
  api.list_repo_files.return_value = ['.gitattributes', 'README.md']
  with pytest.raises(ValueError, match='--overwrite adds a commit'):
    convert.convert(*words)
  convert.convert(*words, overwrite=True)
  with pytest.raises(ValueError, match='without a file'):
    hub_lib.check_target('hf://me/new/a.npz', overwrite=True)
  api.create_repo.side_effect = OSError('403 Forbidden')
  with pytest.raises(ValueError, match='hf://me/new: 403'):
    convert.convert(*words, overwrite=True)


def test_the_command_reads_from_the_hub(hub, birds, tmp_path, command):
  done = command(
    *('vit_jax.convert', '--from=hf://me/birds', f'--to={tmp_path}/birds.npz'),
    HF_ENDPOINT=hub.url,
    HF_HOME=str(tmp_path / 'home'),
    HF_HUB_DISABLE_XET='1',
  )
  assert done.returncode == 0, done.stderr
  assert f'Read hf://me/birds@{fake_hub.COMMIT}: 40 arrays' in done.stdout
  assert len(np.load(tmp_path / 'birds.npz').files) == 40

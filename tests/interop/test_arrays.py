"""Guards files of arrays: what is written and read, what is refused."""

import pathlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from vit_jax.interop import arrays, weight_files

ARRAYS = {
  'cls': np.arange(4, dtype=np.float32).reshape(1, 1, 4),
  'head/kernel': np.arange(6, dtype=np.float64).reshape(2, 3).T,
  'step': np.array(7),
  'half': np.array([1.5, -3], ml_dtypes.bfloat16),
}


@pytest.mark.parametrize('write', [np.savez, np.savez_compressed])
def test_reads_what_numpy_wrote(tmp_path, write):
  write(tmp_path / 'a.npz', **ARRAYS)
  loaded = arrays.read_npz(tmp_path / 'a.npz')
  assert loaded.keys() == ARRAYS.keys()
  for name, array in ARRAYS.items():
    assert loaded[name].dtype == array.dtype
    np.testing.assert_array_equal(loaded[name], array)


def test_writes_what_numpy_reads_and_always_the_same_bytes(tmp_path):
  arrays.write_npz(tmp_path / 'a.npz', ARRAYS)
  arrays.write_npz(tmp_path / 'b.npz', dict(reversed(ARRAYS.items())))
  assert (tmp_path / 'a.npz').read_bytes() == (tmp_path / 'b.npz').read_bytes()
  with np.load(tmp_path / 'a.npz') as loaded:
    assert set(loaded) == ARRAYS.keys()
    np.testing.assert_array_equal(loaded['cls'], ARRAYS['cls'])
  assert sorted(p.name for p in tmp_path.iterdir()) == ['a.npz', 'b.npz']


class _Trap:
  """Touches a file when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self.path,)


def test_pickled_arrays_are_never_run(tmp_path):
  path, sprung = tmp_path / 'a.npz', tmp_path / 'sprung'
  np.savez(path, trap=np.array([_Trap(sprung)], dtype=object))
  with pytest.raises(ValueError, match=r'a\.npz .* can run code'):
    arrays.read_npz(path)
  assert not sprung.exists()
  np.load(path, allow_pickle=True)['trap']
  assert sprung.exists()


def _cut(data):
  return data[: len(data) * 7 // 10]


def _flip(data):
  return data[:4000] + bytes([data[4000] ^ 1]) + data[4001:]


@pytest.mark.parametrize('write', [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
  'damage', [_cut, _flip, lambda _: b'', lambda _: b'hello' * 99]
)
def test_damaged_and_foreign_files_are_one_error(tmp_path, write, damage):
  path = tmp_path / 'a.npz'
  write(path, x=np.random.default_rng(0).normal(size=1000))
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(ValueError, match=r'a\.npz is not a whole \.npz file'):
    arrays.read_npz(path)


def test_files_without_numbers_are_refused(tmp_path):
  np.savez(tmp_path / 'a.npz', text=np.array(['a']))
  with pytest.raises(ValueError, match=r'a\.npz is not a whole \.npz file'):
    arrays.read_npz(tmp_path / 'a.npz')


def test_safetensors_go_out_and_in(tmp_path):
  path = tmp_path / 'a.safetensors'
  tensors = {
    'x': np.arange(6, dtype=np.float32).reshape(2, 3).T,
    'y': np.array([1.5, 0.1], np.float16),
  }
  arrays.write_safetensors(path, tensors)
  loaded = arrays.read_safetensors(path)
  assert loaded.keys() == tensors.keys()
  for name, array in tensors.items():
    assert loaded[name].dtype == array.dtype
    np.testing.assert_array_equal(loaded[name], array)


def _safetensors(header, values=bytes(4), length=None):
  size = (length or len(header)).to_bytes(8, 'little')
  return size + header + values


def test_bfloat16_of_safetensors(tmp_path):
  path = tmp_path / 'a.safetensors'
  values = np.array([[1.5, -3]], ml_dtypes.bfloat16)
  header = b'{"z":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}       '
  path.write_bytes(_safetensors(header, values.tobytes()))
  np.testing.assert_array_equal(arrays.read_safetensors(path)['z'], values)


@pytest.mark.parametrize(
  'data',
  [
    _safetensors(b'{"z":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'),
    _safetensors(b'{"z":' + b'[' * 10**5 + b']' * 10**5 + b'}'),
    _safetensors(b'{}', length=2**60),
    safetensors.numpy.save(ARRAYS | {'half': np.ones(1, bool)}),
    b'hello' * 99,
  ],
  ids=range(5),
)
def test_damaged_safetensors_are_refused(tmp_path, data):
  path = tmp_path / 'a.safetensors'
  path.write_bytes(data)
  with pytest.raises(ValueError, match=r'a\.safetensors'):
    arrays.read_safetensors(path)


def test_arrays_that_are_not_finite_are_named():
  bad = {'a': np.array([1, np.nan]), 'b': np.ones(3), 'c': np.array([np.inf])}
  with pytest.raises(ValueError, match=r'X holds NaN .* in 2 of 3 .*: a, c\.'):
    arrays.check_finite(bad, 'X')
  arrays.check_finite({'b': bad['b']}, 'X')


def test_a_file_of_class_names(tmp_path):
  path = tmp_path / 'names.txt'
  path.write_text('ant\nbee \x1b\n\n')
  assert weight_files.class_names(path) == ('ant', r'bee \x1b')
  path.write_text('ant\n \nbee\n')
  with pytest.raises(ValueError, match=r'names\.txt: line 2 is blank'):
    weight_files.class_names(path)


def test_sizes():
  assert weight_files.pair(4) == weight_files.pair([4, 4]) == (4, 4)
  for bad in (0, True, [4], [4, 0.5], '4', '44', 10**9, None):
    with pytest.raises(ValueError, match='expected a side'):
      weight_files.pair(bad)

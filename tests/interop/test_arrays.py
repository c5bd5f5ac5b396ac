"""Guards `.npz` files: what is read and written, what is refused and why."""

import pathlib
import zipfile

import numpy as np
import pytest

from vit_jax.interop import arrays

ARRAYS = {
  'cls': np.arange(4, dtype=np.float32).reshape(1, 1, 4),
  'head/kernel': np.arange(6, dtype=np.float64).reshape(2, 3).T,
  'step': np.array(7),
}


def _npz(path, **others):
  np.savez(path, **(ARRAYS | others))
  return path


def test_reads_what_numpy_wrote(tmp_path):
  for write in (np.savez, np.savez_compressed):
    write(tmp_path / 'a.npz', **ARRAYS)
    loaded = arrays.read_npz(tmp_path / 'a.npz')
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
      assert loaded[name].dtype == array.dtype
      np.testing.assert_array_equal(loaded[name], array)
  loaded['cls'] += 1  # Writable.


def test_writes_what_numpy_reads_and_always_the_same_bytes(tmp_path):
  for name in ('a.npz', 'b.npz'):
    arrays.write_npz(tmp_path / name, ARRAYS)
  backwards = dict(reversed(ARRAYS.items()))
  arrays.write_npz(tmp_path / 'b.npz', backwards)
  assert (tmp_path / 'a.npz').read_bytes() == (tmp_path / 'b.npz').read_bytes()
  with np.load(tmp_path / 'a.npz') as loaded:
    assert set(loaded) == ARRAYS.keys()
    np.testing.assert_array_equal(loaded['cls'], ARRAYS['cls'])
  assert sorted(p.name for p in tmp_path.iterdir()) == ['a.npz', 'b.npz']


def test_a_failed_write_leaves_the_old_file(tmp_path):
  path = _npz(tmp_path / 'a.npz')
  old = path.read_bytes()
  with pytest.raises(ValueError, match='Object arrays cannot be saved'):
    arrays.write_npz(path, {'a': np.ones(3), 'b': np.array([None])})
  assert path.read_bytes() == old
  assert [p.name for p in tmp_path.iterdir()] == ['a.npz']


class _Trap:
  """Touches a file when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self.path,)


def test_pickled_arrays_are_named_and_never_run(tmp_path):
  trap = np.array([_Trap(tmp_path / 'sprung')], dtype=object)
  path = _npz(tmp_path / 'a.npz', trap=trap)
  with pytest.raises(ValueError, match=r'a\.npz is refused') as error:
    arrays.read_npz(path)
  assert 'trap is a pickled object, which could run code' in str(error.value)
  assert not (tmp_path / 'sprung').exists()
  np.load(path, allow_pickle=True)['trap']
  assert (tmp_path / 'sprung').exists()


def _cut(path, keep):
  data = path.read_bytes()
  path.write_bytes(data[: int(len(data) * keep)])


def test_a_truncated_file(tmp_path):
  path = _npz(tmp_path / 'a.npz')
  _cut(path, 0.7)
  with pytest.raises(ValueError, match=r'a\.npz is cut short or damaged: copy'):
    arrays.read_npz(path)


@pytest.mark.parametrize('write', [np.savez, np.savez_compressed])
def test_a_changed_byte(tmp_path, write):
  path = tmp_path / 'a.npz'
  noise = np.random.default_rng(0).normal(size=1000)
  write(path, x=noise)
  data = bytearray(path.read_bytes())
  data[4000] ^= 1
  path.write_bytes(data)
  with pytest.raises(ValueError, match='is cut short or damaged'):
    arrays.read_npz(path)


@pytest.mark.parametrize('write', [np.savez, np.savez_compressed])
def test_a_wrong_checksum(tmp_path, write):
  path = tmp_path / 'a.npz'
  write(path, x=np.zeros(10000))
  with zipfile.ZipFile(path) as archive:
    checksum = archive.infolist()[0].CRC.to_bytes(4, 'little')
  path.write_bytes(path.read_bytes().replace(checksum, b'1234'))
  with pytest.raises(ValueError, match=r'cut short or damaged: .* Bad CRC-32'):
    arrays.read_npz(path)


def _npy(header, size=None):
  """Returns a member with the given header, valid or not."""
  header = header.encode()
  size = len(header) if size is None else size
  return b'\x93NUMPY\2\0' + size.to_bytes(4, 'little') + header


def _described(shape, dtype="'<f4'"):
  return _npy(f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}")


@pytest.mark.parametrize(
  'member, problem',
  [
    (_npy('(' * 9000), 'has no readable header'),
    (_npy('a' + '.a' * 4000), 'has no readable header'),
    (_npy('{[]: 1}'), r'has no readable header \(unhashable'),
    (_described('(True,)'), r'has no readable header \(shape \(True,\)\)'),
    (_described('(-1,)'), r'has no readable header \(shape'),
    (_described('(2**63,)'), 'has no readable header'),
    (_described(f'({2**63},)'), r'has no readable header \(shape'),
    (_described('(10**9, 0)'), 'has no readable header'),
    (_described('(1000000000, 0)'), r'empty: its shape is \(1000000000, 0\)'),
    (_described('(0,)'), 'is empty'),
    (_described('(1,)', "('i1', (2,))"), 'expected numbers'),
    (_npy('', 2**31), 'it has 2147483648 bytes, expected at most 10000'),
  ],
  ids=range(12),
)
@pytest.mark.filterwarnings('ignore::UserWarning', 'ignore::SyntaxWarning')
def test_headers_that_are_refused(tmp_path, member, problem):
  with zipfile.ZipFile(tmp_path / 'a.npz', 'w') as archive:
    archive.writestr('x.npy', member)
  with pytest.raises(
    ValueError, match=rf'refused; only[^\n]*\n  x .*{problem}'
  ):
    arrays.read_npz(tmp_path / 'a.npz')


@pytest.mark.parametrize(
  'at, value, problem',
  [
    (10, b'\x63', 'is compressed in a way that is not read: write it again'),
    (8, b'\1', 'is encrypted, which is not read'),
    (8, b'\0\x08', 'has a member whose name is not UTF-8'),
    (24, b'\xff\xff\xff\x7f', 'refused; only plain arrays'),
  ],
)
def test_entries_of_the_zip_file_that_cannot_be_read(
  tmp_path, at, value, problem
):
  path = tmp_path / 'a.npz'
  np.savez(path, ab=np.ones(3))
  data = bytearray(path.read_bytes())
  entry = data.rfind(b'PK\1\2')
  data[entry + at : entry + at + len(value)] = value
  if 'UTF-8' in problem:
    data[entry + 46] = 0xFF  # The name's first byte.
  path.write_bytes(data)
  with pytest.raises(ValueError, match=rf'a\.npz (is )?{problem}'):
    arrays.read_npz(path)


def _zeros(path, size):
  """Writes zeros, which deflate compresses to about a thousandth."""
  np.savez_compressed(path, x=np.zeros(size, np.uint8), y=np.ones(3))
  return path


def test_zip_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
  path = _zeros(tmp_path / 'a.npz', 10**6)
  assert arrays.read_npz(path)['x'].size == 10**6  # Too small to do harm.
  monkeypatch.setattr(arrays, '_ALWAYS_READ', 10**6)
  bytes_, size = path.stat().st_size, 10**6 + 24 + 2 * 128
  with pytest.raises(ValueError, match=r'a\.npz is refused') as error:
    arrays.read_npz(path)
  assert f'{bytes_:,} bytes unpack to {size:,}, more than 16' in str(
    error.value
  )
  np.savez(path, **np.load(path))  # The remedy.
  assert arrays.read_npz(path)['x'].size == 10**6
  # Incompressible arrays are never too large.
  noise = np.random.default_rng(0).bytes(3 * 10**6)
  np.savez_compressed(path, x=np.frombuffer(noise, np.uint8))
  assert arrays.read_npz(path)['x'].size == 3 * 10**6


def test_a_header_that_understates_the_data_is_refused(tmp_path):
  path = _zeros(tmp_path / 'a.npz', 10**6)
  with zipfile.ZipFile(path) as archive:
    whole = archive.read('x.npy')
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    archive.writestr('x.npy', whole.replace(b'(1000000,), }', b'(10,), }     '))
  data = bytearray(path.read_bytes())
  entry = data.find(b'PK\1\2')
  data[entry + 24 : entry + 28] = (128 + 10).to_bytes(4, 'little')
  path.write_bytes(data)
  with pytest.raises(ValueError, match='is cut short or damaged'):
    arrays.read_npz(path)


def test_arrays_that_are_not_finite_are_named():
  bad = {
    'a': np.array([1, np.nan]),
    'b': np.ones(3),
    'c': np.array([np.inf], np.float32),
  }
  with pytest.raises(ValueError, match=r'X holds NaN .* in 2 of 3 .*: a, c\.'):
    arrays.check_finite(bad, 'X')
  arrays.check_finite({'b': bad['b']}, 'X')

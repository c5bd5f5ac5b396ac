"""Guards reading of `.safetensors` files: dtypes, and damaged headers."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from vit_jax.interop import safetensors_files


def test_reads_what_the_library_wrote_and_bfloat16(tmp_path):
  path = tmp_path / 'a.safetensors'
  tensors = {
    'x': np.arange(6, dtype=np.float32).reshape(2, 3),
    'y': np.array([1.5, 0.1], np.float16),
  }
  header = b'{"z":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}       '
  path.write_bytes(safetensors.numpy.save(tensors))
  loaded = safetensors_files.read(path)
  assert loaded.keys() == tensors.keys()
  for name, array in tensors.items():
    assert loaded[name].dtype == array.dtype
    np.testing.assert_array_equal(loaded[name], array)
  values = np.array([[1.5, -3]], ml_dtypes.bfloat16)
  size = len(header).to_bytes(8, 'little')
  path.write_bytes(size + header + values.tobytes())
  np.testing.assert_array_equal(safetensors_files.read(path)['z'], values)
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(ValueError, match=r'damaged or not a \.safetensors'):
    safetensors_files.read(path)
  path.write_bytes(
    size
    + header.replace(b'"BF16"', b'"BOOL"').replace(b'0,4', b'0,2')
    + b'\1\0'
  )
  with pytest.raises(ValueError, match=r'not read: z \(BOOL\)\. Expected one'):
    safetensors_files.read(path)


@pytest.mark.parametrize(
  'length, header',
  [
    (None, b'{"z":{"dtype":"F32","shape":[9999999],"data_offsets":[0,4]}}'),
    (None, b'{"z":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'),
    (None, b'{"z":' + b'[' * 10**5 + b']' * 10**5 + b'}'),
    (2**60, b'{}'),
    (10**6, b'{}'),
  ],
)
def test_headers_that_overstate_the_file_are_refused(tmp_path, length, header):
  path = tmp_path / 'a.safetensors'
  size = (length or len(header)).to_bytes(8, 'little')
  path.write_bytes(size + header + bytes(4))
  with pytest.raises(ValueError, match=r'damaged or not a \.safetensors'):
    safetensors_files.read(path)

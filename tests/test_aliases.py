"""Guards: a public name is the module that it stands for."""

import vit_jax.inspect
from vit_jax import inspection


def test_inspect_is_inspection():
  assert vit_jax.inspect is inspection

"""Guards: only one module imports private parts of JAX, and uses them well."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.runtime import jax_internals

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ('vit_jax', 'configs', 'launch', 'benchmarks', 'tests')
PRIVATE = re.compile(
  r'(from|import) (jax|flax|optax|orbax)(\.\w+)*\.(_|interpreters|core\b)'
)


def test_only_one_module_imports_private_parts_of_libraries():
  found = {
    str(file.relative_to(ROOT))
    for folder in FOLDERS
    for file in (ROOT / folder).rglob('*.py')
    if PRIVATE.search(
      file.read_text(encoding='utf-8').replace('jax.extend.core', '')
    )
  }
  assert found == {'vit_jax/runtime/jax_internals.py'}


def test_operations_one_by_one(caplog):
  calls = []

  def function(key, unused):
    calls.append(0)
    jnp.linalg.svd(unused['x'])
    number = jax.random.normal(jax.random.wrap_key_data(key), (3,))
    return {'number': number, 'copy': jnp.copy(number), 'constant': 7}

  args = jax.random.key_data(jax.random.key(0)), {'x': jnp.ones((4, 4))}
  with caplog.at_level('WARNING', 'jax'), jax.log_compiles():
    found = jax_internals.run_op_by_op(function, *args)
  assert len(calls) == 1
  # Otherwise the level of optimisation would be ignored in silence.
  (jitted,) = jax.make_jaxpr(jax.jit(jnp.sin))(1.0).eqns
  assert 'compiler_options_kvs' in jitted.params
  compiled = re.findall(r'XLA compilation of jit\((\w+)\)', caplog.text)
  assert '_normal' in compiled
  assert 'svd' not in compiled  # The result does not need it.
  expected = jax.jit(function)(*args)
  for name, x in expected.items():
    np.testing.assert_allclose(found[name], x, rtol=1e-6)

"""`vit_jax.main` with a lease that expires after seconds.

python -m tests.workdir.buckets.program --config=... --workdir=gs://...
"""

import runpy

import fsspec
import jax

from vit_jax.workdir.buckets import filesystem, lease

if __name__ == '__main__':
  lease.EVERY, lease.STALE = 1.0, 6.0
  filesystem._LONGEST_PAUSE = 1.0
  # Also keeps programs that compile fast.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)
  # It may have been imported before its variables were set.
  fsspec.config.set_conf_env(fsspec.config.conf)
  runpy.run_module('vit_jax.main', run_name='__main__')

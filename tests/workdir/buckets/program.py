"""`vit_jax.main` with a lease that expires after seconds.

python -m tests.workdir.buckets.program --config=... --workdir=gs://...
"""

import runpy

from vit_jax.workdir.buckets import filesystem, lease

if __name__ == '__main__':
  lease.EVERY, lease.STALE = 1.0, 6.0
  filesystem._LONGEST_PAUSE = 1.0
  runpy.run_module('vit_jax.main', run_name='__main__')

"""`vit_jax.inspect` is the public name of `vit_jax.inspection`.

In vit_jax/ itself, a file of this name would replace the standard library's for
each program that is started there.
"""

import runpy
import sys

from vit_jax import inspection

if __name__ == '__main__':
  runpy.run_module(inspection.__name__, run_name='__main__', alter_sys=True)
else:
  sys.modules[__name__] = inspection

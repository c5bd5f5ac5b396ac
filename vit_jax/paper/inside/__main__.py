"""The process that reads weights, see `vit_jax.paper.inside`.

`python -m vit_jax.paper.inside draw` reads a request as JSON from its standard
input; `measure` also prints its answer, as its last line.
"""

import json
import sys

from vit_jax.paper.inside import measuring, pictures

if __name__ == '__main__':
  request = json.load(sys.stdin)
  if sys.argv[1] == 'draw':
    pictures.answer(request)
  else:
    print(json.dumps(measuring.answer(request)))

"""The process that draws from weights, see `pictures`.

`python -m vit_jax.paper.pictures.draw_weights` reads the request that
`pictures.draw` sends, as JSON from its standard input.
"""

import json
import sys

from vit_jax.paper.pictures import weights_drawing

if __name__ == '__main__':
  weights_drawing.answer(json.load(sys.stdin))

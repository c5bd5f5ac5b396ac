"""Files as they are met in the wild: odd, mis-named, damaged, or no images."""

import io
import struct
import zlib

import cv2
import numpy as np
from PIL import Image, PngImagePlugin

KEPT, CONVERTED, SET_ASIDE = 'kept', 'converted', 'set aside'


def scene(mode='RGB', size=(40, 30)):
  """Returns a smooth picture with an edge, which lossy formats keep well."""
  x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
  pixels = np.stack([x, y, np.where(x > y, 220, 40)], axis=-1).astype(np.uint8)
  return Image.fromarray(pixels).convert(mode)


def encoded(image, kind, **options):
  buffer = io.BytesIO()
  image.save(buffer, kind, **options)
  return buffer.getvalue()


def animated(kind):
  others = [scene().rotate(90, expand=False)]
  return encoded(scene(), kind, save_all=True, append_images=others)


def chunk(kind, content):
  check = zlib.crc32(kind + content)
  return struct.pack('>I', len(content)) + kind + content + check.to_bytes(4)


def cv_encoded(suffix, kind, factor=1):
  pixels = np.asarray(scene())[:, :, ::-1].astype(kind) * factor
  return cv2.imencode(suffix, pixels)[1].tobytes()


JPEG = encoded(scene(size=(200, 150)), 'JPEG', quality=90)
PNG = encoded(scene(), 'PNG')
HALF = len(JPEG) // 2


def _rotated():
  exif = Image.Exif()
  exif[0x0112] = 6
  return encoded(scene(), 'JPEG', exif=exif)


def _damaged_scan():
  data = bytearray(encoded(scene(size=(200, 150)), 'JPEG', quality=95))
  data[len(data) // 2 : len(data) // 2 + 300] = bytes(300)
  return bytes(data)


def _ends_at_a_restart():
  """A JPEG whose data end where a restart marker should be."""
  data = encoded(scene(size=(200, 150)), 'JPEG', restart_marker_rows=1)
  return data[: data.index(b'\xff\xd3')] + b'\xff\xd9'


def _long_text():
  text = PngImagePlugin.PngInfo()
  text.add_text('workflow', 2_000_000 * 'a', zip=True)
  return encoded(scene(), 'PNG', pnginfo=text)


def _wrong_checksum():
  data = bytearray(PNG)
  data[-20] ^= 1  # In the last chunk of pixels.
  return bytes(data)


def _huge():
  """A small PNG whose header states 100,000 x 100,000 pixels."""
  head = struct.pack('>IIBBBBB', 100_000, 100_000, 8, 2, 0, 0, 0)
  return (
    b'\x89PNG\r\n\x1a\n'
    + chunk(b'IHDR', head)
    + chunk(b'IDAT', zlib.compress(bytes(100)))
    + chunk(b'IEND', b'')
  )


# Name of the file -> (its bytes, what becomes of it, a part of the note or the
# reason).
FILES = {
  # Kept as they are.
  'plain.jpg': (JPEG, KEPT, ''),
  'progressive.jpg': (encoded(scene(), 'JPEG', progressive=True), KEPT, ''),
  'grey.jpg': (encoded(scene('L'), 'JPEG'), KEPT, ''),
  'rotated.jpg': (_rotated(), KEPT, 'EXIF orientation'),
  'bytes_after_the_end.jpg': (JPEG + b'film' * 99, KEPT, ''),
  'long_text.png': (_long_text(), KEPT, ''),
  'line.png': (encoded(scene(size=(300, 1)), 'PNG'), KEPT, ''),
  'plain.png': (PNG, KEPT, ''),
  'grey.png': (encoded(scene('L'), 'PNG'), KEPT, ''),
  'palette_transparent.png': (
    encoded(scene().quantize(16), 'PNG', transparency=3),
    KEPT,
    '',
  ),
  'transparent.png': (encoded(scene('RGBA'), 'PNG'), KEPT, ''),
  'png_inside.jpg': (PNG, KEPT, 'PNG with the suffix of JPEG'),
  'Bild mit Umlaut \u00e4 (1).jpg': (JPEG, KEPT, ''),
  # Converted.
  'cmyk.jpg': (encoded(scene('CMYK'), 'JPEG'), CONVERTED, 'CMYK'),
  'deep.png': (cv_encoded('.png', np.uint16, 257), CONVERTED, '16 bits'),
  'animated.png': (animated('PNG'), CONVERTED, 'animated'),
  'plain.gif': (encoded(scene(), 'GIF'), CONVERTED, 'GIF'),
  'animated.gif': (animated('GIF'), CONVERTED, 'several pictures'),
  'plain.webp': (encoded(scene(), 'WEBP'), CONVERTED, 'WEBP'),
  'lossless.webp': (encoded(scene(), 'WEBP', lossless=True), CONVERTED, 'WEBP'),
  'animated.webp': (animated('WEBP'), CONVERTED, 'several pictures'),
  'webp.jpg': (encoded(scene(), 'WEBP'), CONVERTED, 'WEBP with the suffix'),
  'plain.bmp': (encoded(scene(), 'BMP'), CONVERTED, 'BMP'),
  'plain.tif': (encoded(scene(), 'TIFF'), CONVERTED, 'TIFF'),
  'pages.tif': (animated('TIFF'), CONVERTED, 'several pictures'),
  'deep.tif': (cv_encoded('.tif', np.uint16, 257), CONVERTED, 'TIFF'),
  'plain.ppm': (encoded(scene(), 'PPM'), CONVERTED, 'PPM'),
  'grey.pgm': (encoded(scene('L'), 'PPM'), CONVERTED, 'PPM'),
  'plain.jp2': (
    encoded(scene(size=(64, 64)), 'JPEG2000'),
    CONVERTED,
    'JPEG2000',
  ),
  'plain.avif': (encoded(scene(), 'AVIF'), CONVERTED, 'AVIF'),
  # Set aside.
  'empty.jpg': (b'', SET_ASIDE, '0 bytes'),
  'zeros.jpg': (bytes(2000), SET_ASIDE, 'cannot decode'),
  'truncated.jpg': (JPEG[:HALF], SET_ASIDE, 'truncated JPEG'),
  'cut_but_ended.jpg': (JPEG[:HALF] + b'\xff\xd9', SET_ASIDE, 'premature end'),
  'ends_at_restart.jpg': (_ends_at_a_restart(), SET_ASIDE, 'truncated JPEG'),
  'damaged_scan.jpg': (_damaged_scan(), SET_ASIDE, 'damaged JPEG'),
  'truncated.png': (PNG[: len(PNG) // 2], SET_ASIDE, 'truncated PNG'),
  'ends_in_a_length.png': (
    PNG[:33] + chunk(b'tEXt', PNG[-8:]) + b'\0\0',
    SET_ASIDE,
    'damaged PNG',
  ),
  'wrong_checksum.png': (_wrong_checksum(), SET_ASIDE, 'checksum'),
  'huge.png': (_huge(), SET_ASIDE, 'pixels'),
  'truncated.gif': (animated('GIF')[:300], SET_ASIDE, 'cannot decode'),
  'truncated.bmp': (encoded(scene(), 'BMP')[:999], SET_ASIDE, 'damaged BMP'),
  'truncated.tif': (encoded(scene(), 'TIFF')[:999], SET_ASIDE, 'TIFF'),
  'float.tif': (encoded(scene('F'), 'TIFF'), SET_ASIDE, 'floating-point'),
  'web_page.jpg': (b'<!DOCTYPE html>404', SET_ASIDE, 'cannot decode'),
  'phone.jpg': (b'\0\0\0\x18ftypheic\0\0\0\0', SET_ASIDE, 'ftyp'),
  'shifted.jpg': (b'\xef\xbb\xbf' + JPEG, SET_ASIDE, 'cannot decode'),
}

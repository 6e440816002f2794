"""Writes formats.json: small files of every picture format and the pixels that transformers' loader makes of them (Pillow's
decoders, turned upright, as RGB): python make_formats.py

Needs Pillow 12, NumPy and transformers 5.17.
"""

import base64
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image
from transformers.image_utils import load_image

here = Path(__file__).parent
WIDTH, HEIGHT = 52, 37
y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
waves = [120 + 90 * np.sin(x / a) * np.cos(y / b) + 25 * ((x // 13 + y // 11) % 2) for a, b in [(9, 7), (14, 11), (6, 17)]]
rgb = Image.fromarray(np.stack(waves, -1).clip(0, 255).astype(np.uint8))
alpha = Image.fromarray(((x * 5 + y * 3) % 256).astype(np.uint8))
rgba = rgb.copy()
rgba.putalpha(alpha)


def save(picture, form, **options):
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def png16(channels, color):
    """Pillow does not write 16-bit colors."""
    values = np.stack([(w * 257 + 91 * i).clip(0, 65535) for i, w in enumerate([*waves, x * 700][:channels])], -1)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff16(values):
    """Pillow does not write 16-bit colors: rows without compression, little-endian."""
    height, width, channels = values.shape
    data = values.astype("<u2").tobytes()
    bits = struct.pack(f"<{channels}H", *[16] * channels)
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, 8 + len(data)), (259, 3, 1, 1), (262, 3, 1, 2),
               (273, 4, 1, 8), (277, 3, 1, channels), (278, 4, 1, height), (279, 4, 1, len(data))]
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(data) + len(bits)) + data + bits + table


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


SMALL = (26, 19)
small, small_alpha = rgb.crop((0, 0, *SMALL)), rgba.crop((0, 0, *SMALL))
deep = np.stack([(w * 257 + 91 * i).clip(0, 65535) for i, w in enumerate(waves)], -1)[:SMALL[1], :SMALL[0]]
gray16 = Image.fromarray(deep[..., 0].astype(np.uint16))
see_through = rgb.quantize(16)
see_through.info["transparency"] = 3
cases = {
    "jpeg 4:2:0": save(rgb, "JPEG", quality=90),
    "jpeg 4:2:2": save(rgb, "JPEG", quality=90, subsampling=1),
    "jpeg 4:4:4": save(rgb, "JPEG", quality=90, subsampling=0),
    "jpeg progressive": save(rgb, "JPEG", quality=80, progressive=True),
    "jpeg restarts": save(rgb, "JPEG", quality=80, restart_marker_rows=1),
    "jpeg gray": save(rgb.convert("L"), "JPEG", quality=90),
    "jpeg cmyk": save(rgb.convert("CMYK"), "JPEG", quality=95),
    **{f"jpeg orientation {n}": save(rgb, "JPEG", quality=90, exif=exif(n)) for n in (3, 5, 6, 8)},
    "png": save(rgb, "PNG"),
    "png gray": save(rgb.convert("L"), "PNG"),
    "png gray alpha": save(rgb.convert("L").convert("LA"), "PNG"),
    "png alpha": save(rgba, "PNG"),
    "png palette": save(rgb.quantize(16), "PNG"),
    "png palette transparent": save(see_through, "PNG", transparency=3),
    "png one bit": save(rgb.convert("1"), "PNG"),
    "png 16 bit": png16(3, 2),
    "png 16 bit alpha": png16(4, 6),
    "webp lossy": save(rgb, "WEBP", quality=85),
    "webp lossless": save(rgb, "WEBP", lossless=True),
    "webp alpha": save(rgba, "WEBP", lossless=True, exact=True),
    "webp animated": save(rgb, "WEBP", save_all=True, append_images=[rgb.rotate(180)], lossless=True),
    "gif": save(rgb.quantize(64), "GIF"),
    "gif animated": save(rgb.quantize(64), "GIF", save_all=True, append_images=[rgb.rotate(180).quantize(64)]),
    "png 16 bit gray": save(gray16, "PNG"),
    "bmp": save(small, "BMP"),
    "bmp gray": save(small.convert("L"), "BMP"),
    "bmp palette": save(small.quantize(16), "BMP"),
    "bmp one bit": save(small.convert("1"), "BMP"),
    "tiff": save(small, "TIFF"),
    **{f"tiff {how}": save(small, "TIFF", compression=how) for how in ("tiff_lzw", "tiff_adobe_deflate", "packbits")},
    "tiff gray": save(small.convert("L"), "TIFF"),
    "tiff alpha": save(small_alpha, "TIFF"),
    "tiff one bit": save(small.convert("1"), "TIFF"),
    "tiff cmyk": save(small.convert("CMYK"), "TIFF"),
    "tiff 16 bit gray": save(gray16, "TIFF"),
    "tiff 16 bit": tiff16(deep),
    "tiff two pages": save(small, "TIFF", save_all=True, append_images=[small.rotate(180)]),
    "tiff orientation 6": save(small, "TIFF", tiffinfo={274: 6}),
}
result = []
for name, data in cases.items():
    picture = load_image(Image.open(io.BytesIO(data)))
    if name.endswith("16 bit gray"):
        # Pillow makes white of all that is above 255. Here the lower byte is dropped, as in 16-bit colors.
        picture = Image.fromarray((np.asarray(gray16) >> 8).astype(np.uint8)).convert("RGB")
    values = np.asarray(picture).flatten()
    result.append({"name": name, "file": base64.b64encode(data).decode(), "size": picture.size,
                   "stride": 23, "values": values[::23].tolist()})
(here / "formats.json").write_text(json.dumps(result, separators=(",", ":")))

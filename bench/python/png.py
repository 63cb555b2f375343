"""Pixels of a PNG file as browsers write it: 8 bits a channel, not interlaced (RFC 2083)."""

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {2: 3, 6: 4}


class Image:
    """Rows of pixels, read once."""

    def __init__(self, path):
        data = path.read_bytes()
        assert data.startswith(SIGNATURE), f"{path} is no PNG"
        at, packed = len(SIGNATURE), b""
        while at < len(data):
            length, kind = struct.unpack(">I4s", data[at : at + 8])
            chunk = data[at + 8 : at + 8 + length]
            if kind == b"IHDR":
                self.width, self.height, depth, colours, *_, interlaced = struct.unpack(">IIBBBBB", chunk)
                assert depth == 8 and colours in CHANNELS and not interlaced, "not as browsers write it"
                self.channels = CHANNELS[colours]
            elif kind == b"IDAT":
                packed += chunk
            at += length + 12
        self.rows = list(self.unfiltered(zlib.decompress(packed)))

    def unfiltered(self, raw):
        """Undoes what was done to each row so that it packs better."""
        size, before = self.width * self.channels, self.channels
        last = bytes(size)
        for start in range(0, len(raw), size + 1):
            kind, row = raw[start], bytearray(raw[start + 1 : start + 1 + size])
            for at in range(size) if kind else ():
                left = row[at - before] if at >= before else 0
                above = last[at]
                corner = last[at - before] if at >= before else 0
                predicted = (0, left, above, (left + above) // 2, paeth(left, above, corner))[kind]
                row[at] = (row[at] + predicted) & 255
            yield row
            last = row

    def colours(self, top, bottom):
        """How many pixels each colour has between two rows."""
        counts = {}
        for row in self.rows[top:bottom]:
            for at in range(0, len(row), self.channels):
                colour = bytes(row[at : at + 3])
                counts[colour] = counts.get(colour, 0) + 1
        return counts


def paeth(left, above, corner):
    """Which of the three neighbours is nearest to left + above - corner."""
    guess = left + above - corner
    return min((left, above, corner), key=lambda one: abs(guess - one))

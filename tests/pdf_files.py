"""Small PDFs, written by hand."""

from __future__ import annotations

import zlib


def pdf_of(*streams: bytes, compressed: bool = False) -> bytes:
    """A PDF with a page for each stream of operators. Its font is Helvetica, as /F1."""
    count = len(streams)
    pages = [3 + 2 * index for index in range(count)]
    kids = b" ".join(b"%d 0 R" % page for page in pages)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, count),
    ]
    for page, stream in zip(pages, streams, strict=True):
        data = zlib.compress(stream, 9) if compressed else stream
        kind = b"/Filter /FlateDecode " if compressed else b""
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents %d 0 R /Resources << /Font << /F1 << "
            b"/Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>" % (page + 1),
            b"<< %s/Length %d >>\nstream\n%s\nendstream" % (kind, len(data), data),
        ]
    text, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(text))
        text += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return text + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        size, table, size, len(text),
    )  # fmt: skip

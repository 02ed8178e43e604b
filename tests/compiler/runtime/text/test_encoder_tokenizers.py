"""tests/conformance/encoder_tokenizers.json, which web/test/encoders reads, is what the tokenizers library computes."""

from __future__ import annotations

import json

from encoder_tokenizers import UNKNOWN, VECTORS, expectations, vectors


def test_the_vectors_are_what_the_tokenizers_library_computes() -> None:
    known = json.loads(VECTORS.read_text())
    for name, model in known["tokenizers"].items():
        assert json.loads(json.dumps(expectations(name, model))) == known["expected"][name], name
        results = known["expected"][name]["texts"]
        assert sum(found is not None for found in results) >= len(results) - 2
        if model["model"]["type"] != "BPE":
            unknown = model["model"].get("unk_id") or model["model"]["vocab"][UNKNOWN[name]]
            assert any(found and unknown in found[0] for found in results)


def test_the_vectors_are_those_of_the_script() -> None:
    # A charsmap may be laid out in another way by another SentencePiece.
    made, known = json.loads(json.dumps(vectors())), json.loads(VECTORS.read_text())
    for name in ("texts", "patterns", "pairs", "expected"):
        assert made[name] == known[name]

"""ONNX Runtime: a decoder graph that ONNX Runtime, its GenAI library and Transformers.js load (`export.py`), run here
by `runner.py`.
"""

"""Fits quantized weights to a calibration text: the best quality under a budget of bits."""

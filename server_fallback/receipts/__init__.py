"""Receipts: an answer's side states which bundle, request and tokens the answer has, and signs it; `nearfar verify`
computes the answer again.
"""

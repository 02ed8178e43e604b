"""Checkpoint -> ModelSpec -> Graph -> passes -> Plan, with weights, quantization, kernel templates and the command
line.
"""

"""`make gpu-static`: what the shader compilers of several GPU families make of a bundle's WGSL, on a machine without a
GPU.
"""

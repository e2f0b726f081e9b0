"""The audit inside of other tools: Lightning, transformers' Trainer, notebooks. Each file needs only its own tool.

All are thin: the watch itself asks for no callback, they only say where it begins and who hears what it found.
"""

"""Frameworks whose training loops survive the loss of workers: Hugging Face's Trainer and Accelerate, and Lightning.

Each module needs the package that it is named after: `pip install 'holdfast[accelerate]'`, `'holdfast[lightning]'`.
"""

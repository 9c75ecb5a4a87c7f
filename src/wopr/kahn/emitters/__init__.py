"""Emitters for producers: one file per family, to be copied into another project.

They import only the standard library, and nothing from this package.
"""

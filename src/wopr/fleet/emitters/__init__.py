"""Emitters for producers: one file per family, to be copied as it is into another project.

Neither imports anything but the standard library, nor anything of this package.
"""

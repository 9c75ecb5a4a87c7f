"""Helpers that the tests of all folders share."""

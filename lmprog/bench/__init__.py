"""The programs of `lmprog bench programs`, and their ablations."""

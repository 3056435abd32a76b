from tests.support.tiny_models import tiny_models

__all__ = ["tiny_models"]

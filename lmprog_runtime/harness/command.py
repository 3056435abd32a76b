"""`lmprog lm-eval ...`: the command of lm-evaluation-harness, with lmprog as one of its models.

lm-eval (0.4.13) has no entry points for models; a model is known once its module is imported, which this does.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Takes what `lm_eval` takes, such as --model lmprog --model_args pretrained=smollm2-135m --tasks hellaswag."""
    try:
        from lm_eval.__main__ import cli_evaluate

        import lmprog_runtime.harness.lm_eval_model  # noqa: F401 - importing it registers the model
    except ImportError as error:
        print(f"lmprog: {error.name} is not installed. Run: pip install lm-eval", file=sys.stderr)
        return 1
    given = sys.argv[2:] if arguments is None else arguments
    sys.argv = ["lm_eval", *given]
    cli_evaluate()
    return 0

"""A DSPy program on an lmprog model: DSPy writes the prompts, lmprog runs them and shares their prefixes.

Needs `pip install dspy`. Over HTTP no engine is needed: dspy.LM("openai/smollm2-135m", api_base=URL + "/v1").
"""

try:
    import dspy
    from dspy.lm15 import Message, Request, Response, Usage
    from dspy.utils.exceptions import AdapterParseError
except ModuleNotFoundError as error:
    raise SystemExit(f"This example needs {error.name}. Run: pip install dspy") from None

from lmprog import Runtime, function, gen, role


@function
def chat(s, turns, max_tokens, temperature):
    for name, text in turns:
        s += role(name, text)
    s += role("assistant", gen("answer", max_tokens, temperature=temperature))


class LmprogEngine:
    """One request of DSPy as one run of a program."""

    def __init__(self, backend):
        self.backend = backend

    def complete(self, request: Request) -> Response:
        system = [("system", request.system)] if request.system else []
        turns = [*system, *((message.role, message.text) for message in request.messages)]
        limit, temperature = request.config.max_tokens or 256, request.config.temperature or 0.0
        state = chat.run(turns, limit, temperature, backend=self.backend)
        usage = state.usage
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant(state["answer"]),
            finish_reason=state.get_meta_info("answer")["finish_reason"],
            usage=Usage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens),
        )


class Summary(dspy.Signature):
    """Say in a few words what the text is about."""

    text: str = dspy.InputField()
    topic: str = dspy.OutputField()


TEXTS = [
    "The match ended two to one after a late goal by the home side.",
    "Heat the oil, add the onions, and stir until they are soft.",
]


def main(backend):
    model = dspy.LM("lmprog", engine=LmprogEngine(backend), cache=False, num_retries=0, max_tokens=40)
    program = dspy.Predict(Summary)
    with dspy.context(lm=model, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        for text in TEXTS:
            try:
                print(f"{program(text=text).topic!r:30} {text}")
            except AdapterParseError as error:  # a small model may miss DSPy's format
                print(f"{error.lm_response[:28]!r:30} (not in DSPy's format) {text}")
            except dspy.LMUnexpectedError as error:  # DSPy's wrapping of what an engine raises
                raise error.__cause__ from None


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)

"""Without the runtime's libraries the language works, and the local runtime says in one sentence what to install."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "numpy"}:
            raise ImportError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import lmprog

@lmprog.function
def program(s):
    s += "a" + lmprog.gen("x")

print(program.run(backend=lmprog.ScriptedBackend(["answer"]))["x"])
try:
    lmprog.Runtime("smollm2-135m")
except lmprog.MissingDependency as error:
    print(error)
"""


def test_the_local_runtime_names_what_is_missing_and_how_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    answer, sentence = done.stdout.splitlines()
    assert answer == "answer"
    assert "is not installed" in sentence
    assert "pip install 'lmprog[runtime]'" in sentence

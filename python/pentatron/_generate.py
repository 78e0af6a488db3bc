"""Text from models."""
from __future__ import annotations

import json
import os
from typing import Any, List, Mapping, Optional, Sequence, Union, overload

from pentatron._config import arguments_of
from pentatron._program import options, output_of


@overload
def generate(model: Union[str, "os.PathLike[str]"], prompt: str, overrides: Optional[Mapping[str, Any]] = None,
             **command_options: Any) -> str: ...
@overload
def generate(model: Union[str, "os.PathLike[str]"], prompt: Sequence[str], overrides: Optional[Mapping[str, Any]] = None,
             **command_options: Any) -> List[str]: ...


def generate(model: Union[str, "os.PathLike[str]"], prompt: Union[str, Sequence[str]],
             overrides: Optional[Mapping[str, Any]] = None, **command_options: Any) -> Union[str, List[str]]:
    """Generates a text after a prompt, or after each of several prompts, with `pentatron generate`.

    model: a checkpoint folder, a Hugging Face folder or a GGUF file. command_options: the command's options, such as
    max_new_tokens=50, temperature=0, stop=["\\n"]. overrides: settings, such as {"device": "cpu"}.
    """
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    lines = output_of(["generate", os.fspath(model), "--json", *[f"--prompt={one}" for one in prompts],
                       *options(command_options), *arguments_of(None, overrides)]).splitlines()
    texts = [json.loads(line)["text"] for line in lines if line]
    return texts[0] if isinstance(prompt, str) else texts

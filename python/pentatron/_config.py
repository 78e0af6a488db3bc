"""Configurations as dicts, checked against the JSON schema that the program prints."""
from __future__ import annotations

import functools
import json
import math
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

from pentatron._program import ConfigError, output_of

_TYPES = {"object": (dict,), "array": (list, tuple), "string": (str,), "boolean": (bool,), "null": (type(None),),
          "integer": (int,), "number": (int, float)}


@functools.lru_cache(maxsize=None)
def _schema_text() -> str:
    return output_of(["config", "schema"])


def schema() -> Dict[str, Any]:
    """The JSON schema (draft 2020-12) of a configuration, as `pentatron config schema` prints it."""
    return json.loads(_schema_text())


def _is_of_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _violation(value: Any, rule: Mapping[str, Any], path: str) -> Optional[str]:
    """The first way in which a value breaks a schema; of JSON schema what `pentatron config schema` uses."""
    if "anyOf" in rule:
        found = [_violation(value, one, path) for one in rule["anyOf"]]
        return None if None in found else found[0]
    if "enum" in rule and value not in rule["enum"]:
        return f"{path}={value!r} is not one of {', '.join(map(str, rule['enum']))}"
    if "type" in rule and not _is_of_type(value, rule["type"]):
        return f"{path or 'the configuration'}={value!r} is not of type {rule['type']}"
    for name, breaks in (("minimum", lambda bound: value < bound), ("maximum", lambda bound: value > bound),
                         ("exclusiveMinimum", lambda bound: value <= bound),
                         ("exclusiveMaximum", lambda bound: value >= bound),
                         ("multipleOf", lambda bound: value % bound != 0), ("minItems", lambda bound: len(value) < bound),
                         ("minLength", lambda bound: len(value) < bound)):
        if name in rule and breaks(rule[name]):
            return f"{path}={value!r} breaks {name}={rule[name]}"
    if isinstance(value, dict):
        for key, inner in value.items():
            below = f"{path}.{key}" if path else str(key)
            known = rule.get("properties", {})
            if key not in known and rule.get("additionalProperties") is False:
                return f"there is no key {below}"
            if key in known:
                violation = _violation(inner, known[key], below)
                if violation:
                    return violation
    if isinstance(value, (list, tuple)) and "items" in rule:
        for i, inner in enumerate(value):
            violation = _violation(inner, rule["items"], f"{path}[{i}]")
            if violation:
                return violation
    return None


def _nested(values: Mapping[str, Any]) -> Dict[str, Any]:
    """Sections as dicts: {"model.num_layers": 2} and {"model": {"num_layers": 2}} are the same."""
    result: Dict[str, Any] = {}
    for key, value in values.items():
        place = result
        *sections, name = str(key).split(".")
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key} is in a section, and {section} is a value")
        if isinstance(value, Mapping):
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{name} is a section and a value")
            for one, what in _nested(value).items():
                inner[one] = {**inner[one], **what} if isinstance(what, dict) and isinstance(inner.get(one), dict) else what
        else:
            place[name] = value
    return result


def _text(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value, ensure_ascii=False)


def settings(values: Mapping[str, Any], prefix: str = "") -> List[str]:
    """The settings key=value of a configuration, in its order."""
    arguments: List[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            arguments += settings(value, f"{prefix}{key}.")
        else:
            arguments.append(f"{prefix}{key}={_text(value)}")
    return arguments


class Config(Mapping[str, Any]):
    """A configuration: sections as dicts, keys and values as in docs/configuration.md. It need not be complete.

    Accepts {"model": {"num_layers": 2}} or {"model.num_layers": 2}. Raises ConfigError if a key, a type or a bound does not
    match schema(). The program checks rules between keys: in complete(), and when a run starts.
    """

    def __init__(self, values: Optional[Mapping[str, Any]] = None) -> None:
        self._values = _nested(values or {})
        violation = _violation(self._values, schema(), "")
        if violation:
            raise ConfigError(violation, "pentatron config help SECTION")

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"pentatron.Config({self._values!r})"

    def complete(self) -> str:
        """The complete configuration as YAML, with all defaults, as printed by `pentatron config show`. Raises ConfigError."""
        return output_of(["config", "show", *arguments_of(self)])


def arguments_of(config: Union[str, "os.PathLike[str]", Mapping[str, Any], None],
                 overrides: Optional[Mapping[str, Any]] = None) -> List[str]:
    """What the command line says for a file, a Config or a dict, and for settings that override it."""
    if config is None:
        arguments: List[str] = []
    elif isinstance(config, Mapping):
        arguments = settings(config if isinstance(config, Config) else Config(config))
    else:
        arguments = [os.fspath(config)]
    return arguments + settings(Config(overrides or {}))

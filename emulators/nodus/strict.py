"""Objects held against the SDK's own models, which allow any extra field; here extra fields are refused."""

from typing import Any

from pydantic import BaseModel, ValidationError


def problems(kind: str, value: Any) -> list[dict[str, str]]:
    """What is wrong with an object, as the causes of a Status; empty where nothing is."""
    from nodus.api import models

    try:
        model = getattr(models, kind).model_validate(value)
    except ValidationError as error:
        return [cause(".".join(map(str, found["loc"])), found["msg"]) for found in error.errors()]
    return [cause(path, "unknown field") for path in extras(model, "")]


def cause(field: str, message: str) -> dict[str, str]:
    return {"field": field, "reason": "FieldValueInvalid", "message": message}


def extras(value: Any, path: str) -> list[str]:
    """Paths of the fields that the SDK's models do not know."""
    if isinstance(value, BaseModel):
        found = [f"{path}{name}" for name in value.__pydantic_extra__ or {}]
        for name in type(value).model_fields:
            found += extras(getattr(value, name), f"{path}{name}.")
        return found
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in extras(item, f"{path}{index}.")]
    return []

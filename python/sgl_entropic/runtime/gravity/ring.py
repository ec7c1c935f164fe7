"""The last hidden states of every request, on the device: written and scored inside the step, in the order of its stream.

A row of SGLang's request pool is a row here. It begins anew when a prompt is computed in it: by then the superfluous step of
the request that had the row before has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sgl_entropic.gravity.settings import GravitySettings
from sgl_entropic.runtime.one_thread import one_thread


@dataclass(slots=True)
class Ring:
    """State of all requests of one scheduler process.

    Attributes:
        units: ``[rows, window, hidden]`` unit vectors of the last states; float32 on a CPU, bfloat16 elsewhere.
        centre: ``[rows, hidden]`` float32, moving mean of unit vectors.
        seen: ``[rows]`` int64, states since the request began.
        settings: ``window``, ``top_k`` and ``centre_decay`` are used.
        compiled: whether the kernel of the CPU platform scores.
    """

    units: torch.Tensor
    centre: torch.Tensor
    seen: torch.Tensor
    settings: GravitySettings
    compiled: bool = False

    @classmethod
    def allocate(
        cls, rows: int, hidden_size: int, settings: GravitySettings, device: torch.device, *, compiled: bool
    ) -> Ring:
        """State for ``rows`` rows, all empty."""
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        return cls(
            torch.zeros(rows, settings.window, hidden_size, dtype=dtype, device=device),
            torch.zeros(rows, hidden_size, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            settings,
            compiled,
        )

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return self.units.nbytes + self.centre.nbytes + self.seen.nbytes

    def restart(self, places: torch.Tensor, rows: Sequence[int]) -> None:
        """Forget the states of ``rows`` of a step whose requests have ``places`` [B]."""
        if rows:
            index = torch.tensor(rows, device=places.device, dtype=torch.long)
            self.seen[places[index].long()] = 0

    def score(self, hidden: torch.Tensor, mean: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Gravity and energy of a step's states, ``[2, B]`` float32; then they are among the last ones.

        Gravity is 0 until the window is full, energy NaN for a request's first state, both are NaN for a state that is not
        finite. Cosines with a zero vector are 0.

        Args:
            hidden: ``[B, hidden]``.
            mean: ``[hidden]`` float32, subtracted.
            places: ``[B]``, the requests' rows; no two are equal.
        """
        if self.compiled:
            return self._by_kernel(hidden, mean, places)
        with one_thread(hidden.device):
            return self._by_tensors(hidden, mean, places.long())

    def _by_kernel(self, hidden: torch.Tensor, mean: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        from sgl_entropic_kernels.native import library  # noqa: PLC0415 -- the CPU platform only

        scores = torch.empty(2, hidden.shape[0])
        settings = self.settings
        library().gravity(
            hidden.float().contiguous(),
            mean,
            places.long().contiguous(),
            self.units,
            self.centre,
            self.seen,
            settings.top_k,
            settings.centre_decay,
            scores,
        )
        return scores

    def _by_tensors(self, hidden: torch.Tensor, mean: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        settings = self.settings
        shifted = hidden.float() - mean
        unit = _unit(shifted)
        seen, centre = self.seen[places], self.centre[places]
        cosines = torch.bmm(self.units[places].float(), unit.unsqueeze(2)).squeeze(2).clamp_(-1.0, 1.0)
        gravity = torch.where(
            seen >= settings.window, cosines.topk(settings.top_k, dim=1).values.mean(1), 0.0
        )
        energy = 1.0 - (_unit(centre) * unit).sum(1).clamp_(-1.0, 1.0)
        self.units[places, seen.remainder(settings.window)] = unit.to(self.units.dtype)
        taken = torch.where(seen > 0, 1.0 - settings.centre_decay, 1.0).unsqueeze(1)
        self.centre[places] = torch.lerp(centre, unit, taken)
        self.seen[places] = seen + 1
        unknown = float("nan")
        finite = shifted.isfinite().all(1)
        return torch.stack(
            (torch.where(finite, gravity, unknown), torch.where(finite & (seen > 0), energy, unknown))
        )


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """Rows of length 1, zeros for those without a length; in double, as squares of small or large floats are no floats."""
    norm = torch.linalg.vector_norm(vectors, dim=1, keepdim=True, dtype=torch.float64)
    return torch.where(norm.isfinite() & (norm > 0), vectors / norm, 0.0).float()

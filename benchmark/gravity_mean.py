"""Write the mean hidden state of a text, for ``--entropic-gravity-mean-path``.

``python benchmark/gravity_mean.py TEXT MEAN.npy [--model-path DIR]``. The text should be like what the server will write: a few
thousand tokens are enough. First tokens of a piece are left out, their states are unlike all others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from gravity_parts.states import Model

PIECE_TOKENS = 512
SKIPPED_TOKENS = 4


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, metavar="TEXT")
    parser.add_argument("mean", type=Path, metavar="MEAN.npy")
    parser.add_argument(
        "--model-path", help="a directory or a name of the catalogue; the default model otherwise"
    )
    options = parser.parse_args()
    if options.mean.suffix != ".npy":
        parser.error(f"{options.mean} does not end with .npy")
    model = Model(options.model_path)
    token_ids = model.tokenizer.encode(options.text.read_text())
    pieces = [token_ids[at : at + PIECE_TOKENS] for at in range(0, len(token_ids), PIECE_TOKENS)]
    states = [model.states(piece)[SKIPPED_TOKENS:] for piece in pieces if len(piece) > SKIPPED_TOKENS]
    if not states:
        parser.error(f"{options.text} has {len(token_ids)} tokens; accepted: more than {SKIPPED_TOKENS}")
    together = np.concatenate(states)
    mean = together.mean(0)
    np.save(options.mean, mean.astype(np.float32))
    share = float((np.linalg.norm(mean) / np.linalg.norm(together, axis=1)).mean())
    print(f"{options.mean}: mean of {len(together)} states; its length is {share:.2f} of theirs")


if __name__ == "__main__":
    main()

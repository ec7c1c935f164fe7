"""``python -m sgl_entropic.launch_server``: SGLang's server with sgl_entropic, in place of ``sglang.launch_server``.

Every flag of SGLang is accepted unchanged, beside ``--entropic-config FILE.yaml`` and the ``--entropic-*`` flags; with no
flag at all it serves the default model. ``--help`` lists them all.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # SGLang's child processes import this module again when they start: nothing may run outside this guard.
    from sgl_entropic.runtime.server import main

    main(sys.argv[1:])

"""Per-request parameters: what clients may ask for, and every way to ask wrongly.

The canonical place on every route is ``custom_params``, which SGLang carries through all its processes::

    "custom_params": {"entropic": {"return_entropy": true}}

The parameters of :data:`TOP_LEVEL` may also stand at the top level of the body. Keys of other extensions in
``custom_params`` pass untouched, within the shapes that SGLang carries and the bounds below. Nothing is repaired:
what is misspelt, misplaced or malformed is refused, since SGLang would ignore it without a word.
"""

from sgl_entropic.request_params.carried import MAX_ITEMS, MAX_KEY_CHARACTERS, MAX_TEXT_BYTES
from sgl_entropic.request_params.mentions import may_mention
from sgl_entropic.request_params.messages import GENERATE_PLACE, PLACE
from sgl_entropic.request_params.parameters import (
    PARAMETERS,
    PARAMETERS_KEY,
    TOP_LEVEL,
    Parameter,
    RequestParams,
)
from sgl_entropic.request_params.parse import MAX_KEYS, parse_custom_params, parse_top_level
from sgl_entropic.request_params.spelling import (
    check_sampling_params_keys,
    check_top_level_keys,
    check_unread_custom_params,
    check_unread_sampling_params,
)

__all__ = [
    "GENERATE_PLACE",
    "MAX_ITEMS",
    "MAX_KEYS",
    "MAX_KEY_CHARACTERS",
    "MAX_TEXT_BYTES",
    "PARAMETERS",
    "PARAMETERS_KEY",
    "PLACE",
    "TOP_LEVEL",
    "Parameter",
    "RequestParams",
    "check_sampling_params_keys",
    "check_top_level_keys",
    "check_unread_custom_params",
    "check_unread_sampling_params",
    "may_mention",
    "parse_custom_params",
    "parse_top_level",
]

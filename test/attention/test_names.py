"""The policies are one list, wherever they are named."""

from typing import get_args

from sgl_entropic.attention.settings import POLICIES
from sgl_entropic.config.model import AttentionConfig
from sgl_entropic.request_params.parameters import POLICIES as REQUESTED


def test_policies_have_the_same_names_everywhere() -> None:
    named, nothing = get_args(AttentionConfig.model_fields["policy"].annotation)
    configured = get_args(named)
    assert nothing is type(None)
    assert configured == POLICIES == REQUESTED

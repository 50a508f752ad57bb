"""A host's limits, as they are set by name."""

from __future__ import annotations

import pytest

from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol.limits import CoreConfig


def test_limits_are_set_by_name_and_keep_the_type():
    limits = CoreConfig().limited(["max_partition_bytes=1000", "lease_s=2.5"])
    assert (limits.max_partition_bytes, limits.lease_s) == (1000, 2.5)
    assert limits.retry_s == CoreConfig().retry_s


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("max_partition_byte=1", "did you mean 'max_partition_bytes'"),
        ("max_partition_bytes=1073741825", "over 1073741824, the most there is"),
        ("monitor=1", "unknown limit 'monitor'"),
        ("lease_s", "not lease_s=NUMBER"),
        ("lease_s=-1", "not lease_s=NUMBER"),
        ("lease_s=nan", "not lease_s=NUMBER"),
        ("max_operators=1.5", "not max_operators=NUMBER"),
    ],
)
def test_an_invalid_limit_is_refused_with_the_reason(setting: str, said: str):
    with pytest.raises(UsageError, match=said):
        CoreConfig().limited([setting])

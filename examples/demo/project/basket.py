# SPDX-License-Identifier: Apache-2.0
"""What a basket costs."""


def total(prices: list[int], discount: int = 0) -> int:
    """The sum of prices in cents, less a discount in percent."""
    return sum(prices) - discount

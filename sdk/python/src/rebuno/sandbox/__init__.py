# SPDX-License-Identifier: Apache-2.0
"""Drivers for sandboxes that need no account: `rebuno.sandbox.local`."""

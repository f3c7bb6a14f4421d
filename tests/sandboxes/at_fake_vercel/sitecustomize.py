# SPDX-License-Identifier: Apache-2.0
"""With this folder in PYTHONPATH, Vercel's API is at FAKE_VERCEL_URL.

The package itself reads no variable for the address.
"""

import os

from vercel.sandbox._internal import options

options.DEFAULT_SANDBOX_API_BASE_URL = os.environ["FAKE_VERCEL_URL"]

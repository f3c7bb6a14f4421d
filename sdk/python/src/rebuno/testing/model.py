# SPDX-License-Identifier: Apache-2.0
"""`python -m rebuno.testing.model SCRIPT`: a model server that says what a script tells it to."""

from ._model import main

if __name__ == "__main__":
    main()

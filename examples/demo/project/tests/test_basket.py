# SPDX-License-Identifier: Apache-2.0
import time
import unittest

from basket import total


class TotalTest(unittest.TestCase):
    def setUp(self) -> None:
        time.sleep(0.4)  # real tests take their time

    def test_no_discount(self) -> None:
        self.assertEqual(total([200, 300]), 500)

    def test_ten_percent_off(self) -> None:
        self.assertEqual(total([200, 300], 10), 450)

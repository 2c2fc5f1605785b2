# SPDX-License-Identifier: Apache-2.0
"""Addresses of this machine's interfaces."""

from __future__ import annotations

import pytest

from horovod.world.network import interface_address, own_addresses


def test_the_first_interface_that_is_there_counts() -> None:
    assert interface_address("lo") == "127.0.0.1"
    assert interface_address("none7, lo,none8") == "127.0.0.1"


def test_no_interface_of_the_list_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="no network interface 'none7,none8' with an address; this host has .*lo"):
        interface_address("none7,none8")


def test_loopback_is_no_address_for_others() -> None:
    addresses = own_addresses()
    assert "127.0.0.1" not in addresses and len(set(addresses)) == len(addresses)

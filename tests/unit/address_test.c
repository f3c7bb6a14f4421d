/* SPDX-License-Identifier: Apache-2.0
 * Where webhooks may go. The ranges are those of the IANA registries of special addresses. */
#include "support/check.h"

#include "dispatch/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static bool allowed(const char *text, bool private_ranges)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};

    if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
        return address_allowed((struct sockaddr *)&in, private_ranges);
    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    return address_allowed((struct sockaddr *)&in6, private_ranges);
}

static void test_addresses(void **state)
{
    static const struct {
        const char *address;
        bool with_private, without;
    } cases[] = {
        {"93.184.216.34", true, true},
        {"2606:2800:220:1::1", true, true},
        {"127.0.0.1", true, false},
        {"127.8.9.10", true, false},
        {"10.0.0.1", true, false},
        {"172.16.0.1", true, false},
        {"172.15.255.255", true, true},
        {"172.32.0.0", true, true},
        {"192.168.1.1", true, false},
        {"100.64.0.1", true, false},
        {"::1", true, false},
        {"fc00::1", true, false},
        {"fd12:3456::1", true, false},
        {"169.254.169.254", false, false},
        {"169.254.0.1", false, false},
        {"169.253.255.255", true, true},
        {"100.100.100.200", false, false},
        {"168.63.129.16", false, false},
        {"fe80::1", false, false},
        {"febf::1", false, false},
        {"fd00:ec2::254", false, false},
        {"::ffff:169.254.169.254", false, false},
        {"::ffff:10.0.0.1", true, false},
        {"::ffff:93.184.216.34", true, true},
        {"64:ff9b::a9fe:a9fe", false, false},
        {"224.0.0.1", false, false},
        {"255.255.255.255", false, false},
        {"ff02::1", false, false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECKF(allowed(cases[i].address, true) == cases[i].with_private, "%s", cases[i].address);
        CHECKF(allowed(cases[i].address, false) == cases[i].without, "%s, private off",
               cases[i].address);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_addresses)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

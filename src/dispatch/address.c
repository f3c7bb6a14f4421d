/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/address.h"

#include <netinet/in.h>

struct range4 {
    uint32_t net;
    unsigned bits;
};

/* 169.254/16 holds the metadata service of most clouds; the single addresses are those of others.
 */
static const struct range4 NEVER4[] = {
    {0xA9FE0000, 16},
    {0x646464C8, 32} /* 100.100.100.200 */,
    {0xA83F8110, 32} /* 168.63.129.16 */,
    {0xC0000000, 24} /* 192.0.0.0/24 */,
    {0xE0000000, 3} /* multicast and reserved */,
};
static const struct range4 PRIVATE4[] = {
    {0x00000000, 8},  {0x0A000000, 8},  {0x7F000000, 8},
    {0xAC100000, 12}, {0xC0A80000, 16}, {0x64400000, 10},
};

static bool in_ranges(uint32_t ip, const struct range4 *ranges, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((ip ^ ranges[i].net) >> (32 - ranges[i].bits) == 0)
            return true;
    return false;
}

static bool allowed4(uint32_t ip, bool private_ranges)
{
    if (in_ranges(ip, NEVER4, COUNT(NEVER4)))
        return false;
    return private_ranges || !in_ranges(ip, PRIVATE4, COUNT(PRIVATE4));
}

static bool is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

static uint32_t read4(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool allowed6(const uint8_t a[16], bool private_ranges)
{
    static const uint8_t aws_metadata[16] = {0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54};

    if (is_zero(a, 10) && a[10] == 0xff && a[11] == 0xff) /* an IPv4 address in disguise */
        return allowed4(read4(a + 12), private_ranges);
    if (a[0] == 0x00 && a[1] == 0x64 && a[2] == 0xff && a[3] == 0x9b) /* NAT64 */
        return allowed4(read4(a + 12), private_ranges);
    if ((a[0] == 0xfe && (a[1] & 0xc0) == 0x80) || a[0] == 0xff || memcmp(a, aws_metadata, 16) == 0)
        return false;
    if (private_ranges)
        return true;
    return !(is_zero(a, 15) && a[15] <= 1) && (a[0] & 0xfe) != 0xfc;
}

bool address_allowed(const struct sockaddr *sa, bool private_ranges)
{
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;

        memcpy(&in, sa, sizeof(in));
        return allowed4(ntohl(in.sin_addr.s_addr), private_ranges);
    }
    if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;

        memcpy(&in6, sa, sizeof(in6));
        return allowed6(in6.sin6_addr.s6_addr, private_ranges);
    }
    return false;
}

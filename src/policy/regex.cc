/* SPDX-License-Identifier: Apache-2.0
 * The only C++ of the program: RE2 has no other interface. */
#include "policy/regex.h"

#include <cstring>
#include <new>
#include <string>

#include <re2/re2.h>

/* For the program and its cache of states together. A pattern of tens of thousands of instructions
 * is refused; one whose states do not fit is searched without the cache, slower but as linear. */
static const int MEMORY_MAX = 1 << 20;

struct regex {
    RE2 re;

    regex(const re2::StringPiece &pattern, const RE2::Options &options) : re(pattern, options)
    {
    }
};

static RE2::Options regex_options()
{
    RE2::Options options;

    options.set_log_errors(false);
    options.set_max_mem(MEMORY_MAX);
    options.set_never_capture(true); /* parentheses only group: smaller programs */
    return options;
}

static void say_why(const std::string &error, char *why, size_t why_n)
{
    size_t n = error.size() < why_n ? error.size() : why_n - 1;

    memcpy(why, error.data(), n);
    why[n] = '\0';
}

/* RE2 allocates as it pleases and throws when there is nothing left: C callers know no exceptions.
 */
struct regex *regex_new(const char *pattern, size_t n, char *why, size_t why_n)
{
    regex *r = nullptr;

    try {
        r = new regex(re2::StringPiece(pattern, n), regex_options());
    } catch (const std::bad_alloc &) {
        say_why("out of memory", why, why_n);
        return nullptr;
    }
    if (r->re.ok())
        return r;
    say_why(r->re.error(), why, why_n);
    delete r;
    return nullptr;
}

void regex_free(struct regex *re)
{
    delete re;
}

bool regex_found(const struct regex *re, const char *text, size_t n, bool *failed)
{
    try {
        return re->re.Match(re2::StringPiece(text, n), 0, n, RE2::UNANCHORED, nullptr, 0);
    } catch (const std::bad_alloc &) {
        *failed = true;
        return false;
    }
}

size_t regex_size(const struct regex *re)
{
    return static_cast<size_t>(re->re.ProgramSize());
}

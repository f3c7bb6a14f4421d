/* SPDX-License-Identifier: Apache-2.0
 * Cutting, packing, and remembering what was packed. */
#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "base/pack.h"
#include "base/rand.h"
#include "base/seen.h"
#include "support/check.h"

static uint64_t next(uint64_t *state)
{
    return *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
}

static void add_letters(struct buf *out, size_t n, uint64_t seed)
{
    while (n-- > 0)
        buf_add_byte(out, (char)('a' + (next(&seed) >> 40) % 26));
}

/* Of so many bytes each; `space` may stand between them. */
static struct buf conversation(size_t messages, size_t bytes, const char *space)
{
    struct buf out = {0};

    buf_printf(&out, "{\"messages\":[");
    for (size_t i = 0; i < messages; i++) {
        buf_printf(&out, "%s{\"content\":\"", i == 0 ? "" : space);
        add_letters(&out, bytes, i + 1);
        buf_printf(&out, "\"}");
    }
    buf_printf(&out, "],\"model\":\"m\"}");
    return out;
}

/* The chunks are the whole, and keep their bounds, which are looked at here in another way: all but
 * the last are long enough, or end an item that was cut inside. */
static void check_cut(struct str whole, const struct chunks *chunks)
{
    const char *at = whole.p;

    assert_true(chunks->n <= chunks_max(whole.n));
    for (size_t i = 0; i < chunks->n; i++) {
        const struct content_chunk *c = &chunks->at[i];
        size_t from = (size_t)(at - whole.p);
        bool inside = i > 0 && chunks->at[i - 1].bytes.p[chunks->at[i - 1].bytes.n - 1] != '}';

        assert_ptr_equal(c->bytes.p, at);
        assert_in_range(c->bytes.n, 1, chunk_max_at(from));
        CHECKF(i + 1 == chunks->n || c->bytes.n >= chunk_min_at(from) ||
                   (inside && c->bytes.p[c->bytes.n - 1] == '}'),
               "chunk %zu of %zu bytes at %zu", i, c->bytes.n, from);
        at += c->bytes.n;
    }
    assert_ptr_equal(at, whole.p + whole.n);
}

static void pieces_are_the_whole(void **state)
{
    static const size_t sizes[] = {0,    1,     511,    512,     513,     2049,
                                   4096, 70000, 300000, 2 << 20, 10 << 20};

    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        for (int kind = 0; kind < 4; kind++) {
            struct arena a = {0};
            struct buf text = {0};
            struct chunks *chunks;

            if (kind == 0)
                add_letters(&text, sizes[i], i);
            while (kind == 1 && text.n < sizes[i])
                buf_add(&text, STR("{},"));
            while (kind == 2 && text.n < sizes[i])
                buf_add(&text, STR("} "));
            while (kind == 3 && text.n < sizes[i])
                buf_add_byte(&text, '\0');
            chunks = chunks_cut(buf_str(&text), &a);
            assert_non_null(chunks);
            check_cut(buf_str(&text), chunks);
            buf_free(&text);
            arena_free(&a);
        }
    }
}

/* However it is made, a text that is large has not very many. */
static void there_are_never_many(void **state)
{
    (void)state;
    assert_true(chunks_max(2048) <= 10);
    assert_true(chunks_max(100 * 1024) <= 300);
    assert_true(chunks_max(10 << 20) <= 1000);
    for (size_t n = 1; n < (10 << 20); n += n / 7 + 1)
        assert_true(chunk_max_at(n) <= CHUNK_MAX && chunk_min_at(n) <= chunk_max_at(n));
}

static bool has(const struct chunks *chunks, const struct content_chunk *wanted)
{
    for (size_t i = 0; i < chunks->n; i++)
        if (memcmp(chunks->at[i].hash, wanted->hash, CHUNK_HASH) == 0)
            return true;
    return false;
}

static size_t missing(const struct chunks *from, const struct chunks *in)
{
    size_t n = 0;

    for (size_t i = 0; i < from->n; i++)
        n += !has(in, &from->at[i]);
    return n;
}

/* One more message: what was there is the same, but for what a minimum holds back. */
static void what_grows_keeps_its_chunks(void **state)
{
    static const char *const spaces[] = {",", ", ", ",\n  ", " , "};

    (void)state;
    for (size_t s = 0; s < COUNT(spaces); s++) {
        for (size_t n = 1; n < 120; n++) {
            struct arena a = {0};
            struct buf before = conversation(n, 2000, spaces[s]),
                       after = conversation(n + 1, 2000, spaces[s]);
            struct chunks *old = chunks_cut(buf_str(&before), &a),
                          *grown = chunks_cut(buf_str(&after), &a);
            size_t fresh = 0;

            for (size_t i = 0; i < grown->n; i++)
                if (!has(old, &grown->at[i]))
                    fresh += grown->at[i].bytes.n;
            CHECKF(fresh <= 2100 + chunk_min_at(before.n), "%zu messages: %zu bytes", n, fresh);
            assert_true(missing(old, grown) <= 1); /* the last one */
            buf_free(&before);
            buf_free(&after);
            arena_free(&a);
        }
    }
}

static void small_messages_stand_alone(void **state)
{
    struct arena a = {0};
    struct buf text = conversation(6, 2000, ",");
    struct chunks *chunks = chunks_cut(buf_str(&text), &a);

    (void)state;
    assert_int_equal(chunks->n, 7);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(chunks->at[i].bytes.p[chunks->at[i].bytes.n - 1], '}');
    CHECK_STR(chunks->at[6].bytes, STR("],\"model\":\"m\"}"));
    buf_free(&text);
    arena_free(&a);
}

/* Without a list in it, by the hash alone: an edit leaves what is far from it alone. */
static void an_edit_is_local(void **state)
{
    enum { N = 200 * 1024 };
    struct arena a = {0};
    struct buf text = {0}, edited = {0};
    struct chunks *before, *after;

    (void)state;
    add_letters(&text, N, 7);
    before = chunks_cut(buf_str(&text), &a);
    for (size_t at = 0; at < N; at += 9973) {
        buf_clear(&edited);
        buf_add(&edited, str_slice(buf_str(&text), 0, at));
        buf_add(&edited, STR("something new"));
        buf_add(&edited, str_slice(buf_str(&text), at, N));
        after = chunks_cut(buf_str(&edited), &a);
        /* What is around it, and where the bounds change, which is elsewhere now. */
        CHECKF(missing(before, after) <= 12, "at %zu: %zu of %zu", at, missing(before, after),
               before->n);
    }
    buf_free(&text);
    buf_free(&edited);
    arena_free(&a);
}

/* ---- packing ---- */

static void what_is_packed_comes_back(void **state)
{
    struct arena a = {0};

    (void)state;
    for (size_t n = 0; n < 40000; n += n / 3 + 1) {
        struct buf text = {0};
        struct str packed;
        char *to = malloc(n + 1);

        assert_non_null(to);
        add_letters(&text, n, n);
        packed = pack(buf_str(&text), &a);
        assert_true(n < 512 || str_present(packed)); /* 26 letters take less than 8 bits each */
        if (str_present(packed)) {
            assert_true(packed.n < n);
            assert_true(unpack(packed, to, n));
            assert_memory_equal(to, text.p, n);
            assert_false(unpack(packed, to, n - 1));
            assert_false(unpack(str_slice(packed, 0, packed.n - 1), to, n));
        }
        free(to);
        buf_free(&text);
    }
    arena_free(&a);
}

static void noise_is_not_packed(void **state)
{
    struct arena a = {0};
    char noise[4096], to[16];

    (void)state;
    rand_bytes(noise, sizeof(noise));
    assert_false(str_present(pack(str_make(noise, sizeof(noise)), &a)));
    assert_false(unpack(str_make(noise, sizeof(noise)), to, sizeof(to)));
    assert_false(unpack(STR(""), to, sizeof(to)));
    arena_free(&a);
}

/* ---- what was seen ---- */

static void it_tells_what_was_added(void **state)
{
    enum { N = 1000 };
    struct seen *s = seen_new();
    size_t known = 0;

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        assert_false(seen_has(s, str_make(&i, sizeof(i))));
        seen_add(s, str_make(&i, sizeof(i)));
        assert_true(seen_has(s, str_make(&i, sizeof(i))));
    }
    for (uint32_t i = 0; i < N; i++)
        known += seen_has(s, str_make(&i, sizeof(i)));
    assert_true(known > N * 9 / 10); /* the others were taken the place of */
    seen_free(s);
    seen_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_the_whole),
        cmocka_unit_test(there_are_never_many),
        cmocka_unit_test(what_grows_keeps_its_chunks),
        cmocka_unit_test(small_messages_stand_alone),
        cmocka_unit_test(an_edit_is_local),
        cmocka_unit_test(what_is_packed_comes_back),
        cmocka_unit_test(noise_is_not_packed),
        cmocka_unit_test(it_tells_what_was_added),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

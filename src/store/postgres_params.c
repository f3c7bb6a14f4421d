/* SPDX-License-Identifier: Apache-2.0
 * The binary form of arrays: dimensions (1), "holds NULLs", element type, length, lower bound (1),
 * then each element as its length (-1: NULL) and its bytes. All big-endian. */
#include "store/postgres_params.h"

#include "base/be.h"

enum {
    OID_BYTEA = 17,
    OID_INT8 = 20,
    OID_TEXT = 25,
    OID_BYTEA_ARRAY = 1001,
    OID_TEXT_ARRAY = 1009,
    OID_INT8_ARRAY = 1016,
    ARRAY_HEADER = 20,
    KEEP_BYTES = 512 * 1024, /* a larger buffer is given back after the call */
};

static void add_be32(struct buf *b, int32_t v)
{
    char bytes[4];

    put_be32(bytes, (uint32_t)v);
    buf_add(b, str_make(bytes, sizeof(bytes)));
}

static void add_be64(struct buf *b, int64_t v)
{
    char bytes[8];

    put_be64(bytes, (uint64_t)v);
    buf_add(b, str_make(bytes, sizeof(bytes)));
}

int64_t postgres_int(const char *bytes, int length)
{
    uint64_t v = length > 0 && (bytes[0] & 0x80) != 0 ? UINT64_MAX : 0;

    for (int i = 0; i < length; i++)
        v = v << 8 | (uint8_t)bytes[i];
    return (int64_t)v;
}

static bool is_array(char type)
{
    return type >= 'A' && type <= 'Z';
}

static Oid element_oid(char type)
{
    switch (type) {
    case 'i':
    case 'I':
        return OID_INT8;
    case 't':
    case 'T':
        return OID_TEXT;
    default:
        ASSERT(type == 'b' || type == 'B');
        return OID_BYTEA;
    }
}

static Oid param_oid(char type)
{
    if (!is_array(type))
        return element_oid(type);
    switch (element_oid(type)) {
    case OID_INT8:
        return OID_INT8_ARRAY;
    case OID_TEXT:
        return OID_TEXT_ARRAY;
    default:
        return OID_BYTEA_ARRAY;
    }
}

void params_types(struct postgres_params *p, const char *types)
{
    p->n = (int)strlen(types);
    ASSERT(p->n <= DB_PARAMS_MAX);
    for (int i = 0; i < p->n; i++)
        p->oids[i] = param_oid(types[i]);
}

void params_begin(struct postgres_params *p, const char *types)
{
    p->types = types;
    params_types(p, types);
    p->failed = false;
    for (int i = 0; i < p->n; i++) {
        if (p->data[i].cap > KEEP_BYTES)
            buf_free(&p->data[i]);
        buf_clear(&p->data[i]);
        p->elements[i] = 0;
        p->nulls[i] = false;
        if (is_array(types[i]) && buf_reserve(&p->data[i], ARRAY_HEADER))
            p->data[i].n = ARRAY_HEADER;
    }
}

static void add_value(struct buf *b, const struct db_value *v, bool with_length)
{
    if (v->type == DB_INT) {
        if (with_length)
            add_be32(b, 8);
        add_be64(b, v->i);
        return;
    }
    if (with_length)
        add_be32(b, (int32_t)v->s.n);
    buf_add(b, v->s);
}

static bool fits(char type, const struct db_value *v)
{
    switch (v->type) {
    case DB_NULL:
        return true;
    case DB_INT:
        return element_oid(type) == OID_INT8;
    case DB_TEXT:
        return element_oid(type) == OID_TEXT;
    case DB_BYTES:
        return element_oid(type) == OID_BYTEA;
    }
    return false;
}

void params_row(struct postgres_params *p, const struct db_value *values, unsigned n, bool first)
{
    ASSERT((int)n >=
           p->n); /* as many as the statement has letters; those behind are SQLite's alone */
    for (int i = 0; i < p->n; i++) {
        const struct db_value *v = &values[i];
        struct buf *b = &p->data[i];

        ASSERT(fits(p->types[i], v));
        if (v->type != DB_INT && v->type != DB_NULL && v->s.n > INT32_MAX / 2) {
            p->failed = true;
            continue;
        }
        if (!is_array(p->types[i])) {
            if (first) {
                p->nulls[i] = v->type == DB_NULL;
                if (!p->nulls[i])
                    add_value(b, v, false);
            }
            continue;
        }
        p->elements[i]++;
        if (v->type == DB_NULL) {
            p->nulls[i] = true;
            add_be32(b, -1);
        } else {
            add_value(b, v, true);
        }
    }
}

void params_finish(struct postgres_params *p)
{
    for (int i = 0; i < p->n; i++) {
        struct buf *b = &p->data[i];

        if (b->failed || b->n > INT32_MAX) {
            p->failed = true;
            return;
        }
        if (is_array(p->types[i])) {
            put_be32(b->p, 1);
            put_be32(b->p + 4, p->nulls[i]);
            put_be32(b->p + 8, element_oid(p->types[i]));
            put_be32(b->p + 12, (uint32_t)p->elements[i]);
            put_be32(b->p + 16, 1);
        }
        p->values[i] = !is_array(p->types[i]) && p->nulls[i] ? NULL : buf_str(b).p;
        p->lengths[i] = (int)b->n;
        p->formats[i] = 1;
    }
}

void params_free(struct postgres_params *p)
{
    for (size_t i = 0; i < DB_PARAMS_MAX; i++)
        buf_free(&p->data[i]);
}
